"""Parsing and printing. The rooms are imported inside the commands, so that --help costs none of them."""
