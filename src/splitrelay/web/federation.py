"""The view Federation: the status of a deployed run, asked over mutual TLS as an observer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from splitrelay.errors import InputError
from splitrelay.web.run_list import Query
from splitrelay.web.source import PageSource


def get_status(source: PageSource, query: Query) -> dict[str, Any]:
    """Return the report of the server.

    Raises:
        InputError: The page has no address of a server.
    """
    if source.address is None:
        hint = "Start the page with an address: splitrelay page HOST:7443 --keys observer"
        raise InputError("this page does not watch a deployed run", hint=hint)
    client = import_module("splitrelay.deploy.status_client")  # it needs gRPC, which a page of runs does not need
    report: dict[str, Any] = client.ask_status(source.address, source.keys, source.insecure)
    return {"address": source.address, "report": report}
