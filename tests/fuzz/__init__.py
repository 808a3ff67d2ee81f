"""Hostile peers: `python -m tests.fuzz` attacks servers, `python -m tests.fuzz.malicious_server` attacks clients."""
