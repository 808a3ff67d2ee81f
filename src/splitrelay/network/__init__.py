"""Encode, check and transfer the messages between server and clients.

The messages, their codec, the protocol and the limits use neither the network nor files.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes a line for every stranger whose handshake fails
