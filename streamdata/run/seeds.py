"""Seeds from names: stable over processes, machines and Python versions."""

import json
from hashlib import blake2b


def stable_seed(*parts: object) -> int:
    """Hash `parts` to an int in [0, 2**63).

    The parts are written as JSON, so they may be strings, numbers, None and (nested) sequences of these; a tuple
    equals a list. The hash is BLAKE2b (RFC 7693), never `hash()`, which differs between processes.

    Raises:
        TypeError: A part has no JSON form.
    """
    text = json.dumps(parts, separators=(",", ":"))
    # 63 bits: it also fits where integers are signed, such as NumPy's int64 and the fields of a sample.
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
