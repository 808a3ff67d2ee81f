"""`splitrelay quadratics`: the command, and what it prints."""
