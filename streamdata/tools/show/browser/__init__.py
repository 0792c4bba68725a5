"""Samples in a browser: `request → place in the stream → samples, read by one job at a time → a page`.

- `browse`: a mixture or a store → what is browsed; serves it
- `server`: socket → path and query, for whoever has the token
- `pages`: path and query → HTML
- `reading`: a place → the page of steps that begins there
"""
