"""Objects elsewhere, read by ranges: `url, range, version → bytes of that version`, with retries counted per host.

| file | what is in it |
|---|---|
| `addresses.py` | urls with what it takes to reach them: `storage_options`, the page cache |
| `hosts.py` | which client reads a url; how its host has answered so far |
| `requests.py` | what is asked and answered, what HTTP says of it; when a request is made again |
| `network.py` | the requests of a process, over one pool of connections, by an event loop |
| `once.py` | requests that the caller waits for: bytes, sizes, lists, and what is written |
| `web_client.py`, `s3_client.py` | web servers and S3 APIs, by aiohttp |
| `object_client.py`, `file_client.py` | what obstore and fsspec read |
"""
