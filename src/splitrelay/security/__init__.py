"""Certificates, keys, revocation, and the encryption of client halves."""
