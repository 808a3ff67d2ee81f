"""Every limit of the wire, with its number. Past it the peer gets an error, and the server keeps its pace."""

from __future__ import annotations

MESSAGE = 64 * 2**20  # bytes of one message: a batch of smashed data must fit
CHUNK = 2**20  # bytes of a half in one message, well under the 4 MB that gRPC peers allow by default
LEAST = 2**9  # bytes of a chunk that another one follows: short ones cost more than they carry
PIECE = 2**18  # bytes of a half that we send in one message: one in SILENCE seconds is 13 kB/s
HALF = 2**31  # bytes of one half, or of a whole model
CONTROL = 256 * 2**10  # bytes of one control message: a spec and the names of its classes must fit
BATCH = 2**20  # samples of one step
AXES = 4  # of smashed data, the samples included
NORMS = 2**16  # squared norms on one reply: one for each tensor of the server's half
STEPS = 10**9  # K of a visit
SAMPLES = 10**9  # n_m of a client
CLASSES = 2**20
PIXELS = 2**28  # of one image, all channels
LEVEL = 10**6  # mean of a channel, at most; its standard deviation lies between 1/LEVEL and LEVEL
PADDING = 1024  # pixels around an image, for random crops
CLIENTS = 10_000  # of a run, each on one link
STRANGERS = 64  # links whose handshake is not over
HANDSHAKES = 4  # of them, those under one certificate
CONNECTIONS = 16_000  # of any kind, TLS handshakes included; where fewer files may be open, so many less SPARE
PEERS = 200  # connections to a client that listens for others
SPARE = 100  # open files that connections leave to the server itself
STREAMS = 8  # on one connection
COLLECTORS = 4  # that are being given the model
TEXT = 1000  # letters of a reason or a name
SECONDS = 10**10  # that a client may say to have spent
MEMORY = 2**50  # bytes that a client may say to have used
LINKS = 20  # one after another on which a visit gets no further
# A visit without clip may move its weights by MOVE_FACTOR times (their norm + 1). Visits that learn stay below 4 times
# (digits, K=20, C=1, eta up to 0.3, SSL and SCAFFOLD); those that reach 1000 have blown up (eta >= 1). So it keeps out
# what overflows, and not what poisons: clip gives a bound that is nearly exact.
MOVE_FACTOR = 1000.0
LARGEST_WEIGHT = 1e6  # or twice the largest one before: activations of float32 stay numbers for several layers
IDLE_MESSAGES = 500  # of one link in a row that bring the run no further, such as heartbeats and repeated steps
IDLE_RATE = 50.0  # of them in a second, for longer than that
WAITING = 16  # messages of one link that the server has not answered yet

HANDSHAKE = 30.0  # seconds for TLS, and again from the first word to the welcome
IDLE = 60.0  # seconds that a connection may stay without a link or a question
QUESTION = 600.0  # seconds for a question and all of its answer
STANDSTILL = 0.1  # seconds for which a server that computes leaves its links to themselves
SHORTEST_HEARTBEAT = 0.05  # seconds: a server may not ask its clients to send more often
HEARTBEAT = 5.0  # seconds of silence after which a peer says that it is there
SILENCE = 20.0  # seconds of silence after which a link is taken for lost
STEP = 300.0  # seconds that one local step may take
GRACE = 10.0  # seconds that a client which is told to stop waits for what the server still owes to its visit
LEASE = 60.0  # seconds that a client may be away before its visit is taken back
BACKOFF = (0.1, 15.0)  # seconds between two attempts to connect: the first, the longest
