"""The programs: a server, its clients, and a rehearsal of both on one machine."""
