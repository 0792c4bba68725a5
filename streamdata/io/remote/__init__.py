"""Objects elsewhere, read by ranges: `url, range, version → bytes of that version`, with retries counted per host.

| file | what is in it |
|---|---|
| `addresses.py` | urls with what it takes to reach them: `storage_options`, the page cache |
| `hosts.py` | which host a url is of, and how its requests are signed |
| `requests.py` | what is asked and answered; when a request is made again |
| `network.py` | the requests of a process, over one pool of connections, by an event loop |
| `once.py` | requests without threads and event loop: what is read before a fork, and what is written |
| `web.py`, `web_client.py` | HTTP of one attempt, with and without an event loop |
| `object_client.py`, `file_client.py` | what obstore and fsspec read |
"""
