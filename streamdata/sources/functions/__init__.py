"""Process functions, from records to samples: `records → functions → samples, each with a cursor`.

- `process_functions.py`: `call_per_record`, and `run_bursts` of a stream function
- `starts.py`: a copy of a stream function for each start
- `tally.py`: what was read and not delivered, counted, and errors with a note
- `images.py`: functions of images
"""
