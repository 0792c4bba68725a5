"""Mutants that survive, and rightly: for each, by file, line before and line after, why no test kills it."""

_ONLY_TIME = "The result is the same; only the time that it takes differs."

ALIKE = {"for i, (child, state) in enumerate(zip(self._children, self._node_states, strict=True)):": 2}
"""Lines that a file has more than once, and how often: a judgement is of all of them."""

JUDGED: dict[tuple[str, str, str], str] = {
    (
        "stores/datasets/blend_rule.py",
        "rule = by_numpy if compiled is None else compiled[len(shares) > SCANNED]",
        "rule = by_numpy if compiled is None else compiled[len(shares) <= SCANNED]",
    ): _ONLY_TIME,
    (
        "stores/datasets/blend_rule.py",
        "rule = by_numpy if compiled is None else compiled[len(shares) > SCANNED]",
        "rule = by_numpy if compiled is None else compiled[len(shares) >= SCANNED]",
    ): _ONLY_TIME,
    (
        "stores/datasets/blend_rule.py",
        "burst, margin, lowest = max(8, num_datasets // 8), 8 * unit / num_datasets, -(num_datasets + 2) * unit",
        "burst, margin, lowest = max(8, num_datasets * 8), 8 * unit / num_datasets, -(num_datasets + 2) * unit",
    ): _ONLY_TIME,
    (
        "stores/datasets/blend_rule.py",
        "near = np.flatnonzero(shares * max(end - late, late) - taken >= floor)",
        "near = np.flatnonzero(shares * max(end - late, late) + taken >= floor)",
    ): "More datasets are near than need be, those that count among them. " + _ONLY_TIME,
    ("stores/datasets/blend_rule.py", "WORTH_COMPILING = 1 << 19", "WORTH_COMPILING = 1 << 20"): _ONLY_TIME,
    (
        "stores/datasets/blend_rule.py",
        "integers = np.int64 if largest < 1 << 62 else object",
        "integers = np.int64 if largest < 2 << 62 else object",
    ): "What stays below 2**63 fits into int64 too: the bound has a bit to spare.",
    (
        "stores/datasets/blendable.py",
        "if len(ranks) <= _FEW_INDICES:",
        "if len(ranks) < _FEW_INDICES:",
    ): _ONLY_TIME,
    ("stores/datasets/blendable.py", "if len(some) <= _FEW:", "if len(some) < _FEW:"): _ONLY_TIME,
    (
        "run/seeds.py",
        "if len(positions) < _FEW:",
        "if len(positions) <= _FEW:",
    ): "Both ways give the same images. " + _ONLY_TIME,
    (
        "run/seeds.py",
        "if len(positions) < _FEW:",
        "if len(positions) >= _FEW:",
    ): "Both ways give the same images. " + _ONLY_TIME,
    (
        "run/seeds.py",
        "self._keys: list[np.uint64] = list(hashes_of(np.arange(_ROUNDS), np.uint64(seed)))",
        "self._keys: list[np.uint64] = (hashes_of(np.arange(_ROUNDS), np.uint64(seed)))",
    ): "An array of keys is read by number as a list of them. " + _ONLY_TIME,
    (
        "run/seeds.py",
        "self._keys: list[np.uint64] = list(hashes_of(np.arange(_ROUNDS), np.uint64(seed)))",
        "self._keys: list[np.uint64] = list(hashes_of(np.arange(_ROUNDS), (seed)))",
    ): "With an array of uint64 NumPy computes with one of Python's integers that fits as with its own.",
    (
        "run/seeds.py",
        "_MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))",
        "_MIXERS = ((np.uint64(30), (0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))",
    ): "With an array of uint64 NumPy computes with one of Python's integers that fits as with its own.",
    (
        "run/seeds.py",
        "self._left, self._right = np.uint64(left), np.uint64(-(-size // left))",
        "self._left, self._right = np.uint64(left), (-(-size // left))",
    ): "With an array of uint64 NumPy computes with one of Python's integers that fits as with its own.",
    (
        "shards/tar/shards.py",
        "self._is_kept = has_remote and size <= shards.max_kept_bytes",
        "self._is_kept = has_remote and size < shards.max_kept_bytes",
    ): "A window of exactly 128 MiB is fetched in another number of pieces; the records are the same.",
    (
        "stores/datasets/blend_rule.py",
        "if most < floor:",
        "if most <= floor:",
    ): "A burst that ends at its floor is followed by one with a lower floor. " + _ONLY_TIME,
    (
        "mixing/mixture.py",
        "elif pulled > _MAX_JOINED and epochs.are_over({node_of(entry).path: entry for entry in entries}):",
        "elif pulled >= _MAX_JOINED and epochs.are_over({node_of(entry).path: entry for entry in entries}):",
    ): "The condition before it has dealt with equality.",
    (
        "shards/tar/headers.py",
        'prefix = header[345:500].split(b"\\0", 1)[0] if header[257:263] == b"ustar\\0" else b""',
        'prefix = header[345:500].split(b"\\0", 2)[0] if header[257:263] == b"ustar\\0" else b""',
    ): "The first piece is the same, whatever follows it is cut into.",
    (
        "shards/tar/records.py",
        "if len(self) >= _MAX_FIELD_NAMES:",
        "if len(self) > _MAX_FIELD_NAMES:",
    ): "The bound of a cache: one name more or less. " + _ONLY_TIME,
    (
        "stores/datasets/blendable.py",
        "return int(self._counts[row, int(number)]) + int(np.count_nonzero(since == number))",
        "return int(self._counts[row, (number)]) + int(np.count_nonzero(since == number))",
    ): "An integer of NumPy is an index as one of Python is.",
    (
        "sources/order/deal.py",
        'beyond = np.where(stretches["stop"] < 0, 0, cut.records(last.end - last.begin) - stretches["stop"])',
        'beyond = np.where(stretches["stop"] <= 0, 0, cut.records(last.end - last.begin) - stretches["stop"])',
    ): "A stretch has a record of its last window, or it ends with the window before.",
    (
        "sources/order/dealt_lane.py",
        "return epoch, window + blocks, rest, 0",
        "return epoch, window + blocks, rest, 1",
    ): "Whoever asks for the position reads its epoch, window and records alone.",
    (
        "sources/order/dealt_lane.py",
        "end = max(start, leftover.end(source.blocks_per_window))",
        "end = (leftover.end(source.blocks_per_window))",
    ): "No stretch that is written begins after its end; one that did would have no record, not less than none.",
    ("shards/tar/records.py", "_MAX_FIELD_NAMES = 4096", "_MAX_FIELD_NAMES = 4097"): _ONLY_TIME,
    ("shards/tar/shards.py", "_MAX_LOOK_AHEAD = 128", "_MAX_LOOK_AHEAD = 129"): _ONLY_TIME,
    (
        "shards/tar/shards.py",
        "for position in np.flatnonzero(self._bytes.sizes > most).tolist():",
        "for position in np.flatnonzero(self._bytes.sizes >= most).tolist():",
    ): "A record that is as large as a member may be has headers, too: no member of a sound one is too large.",
    (
        "mixing/mixture.py",
        "feed, outputs, pulled = feed_of(), 0, 0",
        "feed, outputs, pulled = feed_of(), 0, 1",
    ): "A search without an output is given up one sample earlier, if it is the first: an error comes that would come.",
    (
        "states/progress.py",
        "given |= zip(COUNTS, map(int.__sub__, progress.counts(epoch_pass, path), first), strict=True)",
        "given |= zip(COUNTS, map(int.__sub__, progress.counts(epoch_pass, path), first), strict=False)",
    ): "Both sides have a number for each of COUNTS.",
    (
        "sources/order/dealt_lane.py",
        'expected = f"at least {first}" if window < first else f"at most {windows}"',
        'expected = f"at least {first}" if window <= first else f"at most {windows}"',
    ): "Only a window before the first or after the last one comes here.",
    (
        "states/joining.py",
        "error = str(raised)",
        "error = (raised)",
    ): "It is gathered by pickling, and only shown in a message: the same text.",
    (
        "mixing/mixture.py",
        "for i, (child, state) in enumerate(zip(self._children, self._node_states, strict=True)):",
        "for i, (child, state) in enumerate(zip(self._children, self._node_states, strict=False)):",
    ): "Each child has one state: both lists are made of the same children.",
    (
        "states/table.py",
        'used = {paths[index]: index for index in np.unique(rows["path"]).tolist()}',
        'used = {paths[index]: index for index in (rows["path"]).tolist()}',
    ): _ONLY_TIME,
    (
        "sources/order/deal.py",
        "block = np.where(is_whole & (after < before), window.end, window.begin)",
        "block = np.where(is_whole & (after <= before), window.end, window.begin)",
    ): "Both ends are as near: whichever a cut goes to, lanes hold as much, and each record is dealt to one of them.",
}
