"""The web page of runs and deployments: a local server, its views as JSON, and one static file of the same page.

`server` answers requests. Each view is a function that takes a `PageSource` and the query of the request, and returns
JSON. `static/` has the page itself: plain JavaScript without a build step, and uPlot with its licence.
"""
