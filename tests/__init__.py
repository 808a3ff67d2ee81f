"""Tests of splitrelay. A package, so that tests can import tests.support."""
