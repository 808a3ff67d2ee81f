"""Fault plans for `splitrelay rehearse --faults`: crashes, lost and damaged messages, and malicious participants."""
