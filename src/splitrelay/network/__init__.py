"""The wire: what goes from host to host, byte by byte, and who may say what when. No network, no file, no model here
but in server, client and peer."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes a line for every stranger whose handshake fails
