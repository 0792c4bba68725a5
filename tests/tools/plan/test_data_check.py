"""Faults are injected into files of each kind; all of them are found, and every sound record is read."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from streamdata.run.processes import ForkReport
from streamdata.tools.data_check.data_check import DataCheck
from streamdata.tools.data_check.data_records import MAX_LISTED, Findings
from tests.io.servers import http_server
from tests.shard_files import write_jsonl, write_tars


def source(target, path, name="a", **params):
    """What a recipe says of a source."""
    return {"target": f"streamdata.{target}", "params": {"path": str(path), **params}, "name": name, "percent": 1}


def checked(*datasets):
    """What is found in a mixture of these."""
    found, recipe = Findings(), {"target": "streamdata.MergedDataset", "params": {"datasets": list(datasets)}}
    check = DataCheck(recipe, {}, None)
    told = ForkReport(send=lambda fault: found.faults.append(fault[1]), mark=lambda _: None)
    for task in list(check.tasks(found)):
        found.join(check(task, told))
    return found


def function(name):
    """A target in a recipe."""
    return {"target": f"tests.tools.view.functions.{name}"}


def test_sound_data_of_each_kind_are_read_once(tmp_path):
    """Tars with sidecars, lines, compressed lines, rows."""
    lines = Path(write_jsonl(tmp_path / "lines", [5, 3]))
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz" / "0.jsonl.gz").write_bytes(gzip.compress((lines / "00000.jsonl").read_bytes()))
    pq.write_table(pa.table({"n": range(7)}), tmp_path / "rows.parquet")
    tars = write_tars(tmp_path / "tars", [4, 2], images=True)
    found = checked(
        source("JsonlIterableDataset", lines, "lines"),
        source("JsonlIterableDataset", tmp_path / "gz", "gz"),
        source("ParquetDataset", tmp_path / "rows.parquet", "rows"),
        source("MetaDistributedWebDataset", tars, "tars", meta_names=["score"]),
    )
    assert (found.num_records, found.faults, found.counts.total()) == (8 + 5 + 7 + 6, [], 0)


def test_every_broken_line_is_named_and_the_others_are_read(tmp_path):
    """By file, line and column; keys given twice at any depth; in compressed files, too."""
    text = b'{"x": 1}\n{"x": 1, "x": 2}\n{broken\n\n[1]\n{"y": [{"z": 1, "z": 2}]}\n'
    (tmp_path / "0.jsonl").write_bytes(text)
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(text))
    found = checked(source("JsonlIterableDataset", tmp_path))
    assert found.num_records == 6
    assert found.counts == {"damaged": 4, "key given twice": 4}
    places = [fault.message.split(" ")[0].removeprefix(f"{tmp_path}/") for fault in found.faults]
    assert places == [
        "0.jsonl:2:", "0.jsonl:3:2:", "0.jsonl:5:1:", "0.jsonl:6:",
        "1.jsonl.gz:2:", "1.jsonl.gz:3:2:", "1.jsonl.gz:5:1:", "1.jsonl.gz:6:",
    ]  # fmt: skip


def test_a_damaged_shard_does_not_hide_the_others(tmp_path):
    """One tar is cut, one compressed file, and one folder has nothing."""
    tars = Path(write_tars(tmp_path / "tars", [3, 3, 3], sidecars=False))
    cut = tars / "00001.tar"
    cut.write_bytes(cut.read_bytes()[:700])
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz" / "0.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n')[:-6])
    found = checked(
        source("MetaDistributedWebDataset", tars, "tars"),
        source("JsonlIterableDataset", tmp_path / "gz", "gz"),
        source("JsonlIterableDataset", tmp_path / "none", "none"),
    )
    assert found.num_records == 6
    assert sorted((fault.source, fault.kind) for fault in found.faults) == [
        ("gz", "damaged"), ("none", "damaged"), ("tars", "damaged"),
    ]  # fmt: skip
    (message,) = (fault.message for fault in found.faults if str(cut) in fault.message)
    assert message.endswith("without a sidecar, and given to no function.")


@pytest.mark.parametrize("fault", ["cut", "sidecar", "both"])
def test_a_tar_without_an_index_is_read_up_to_its_fault(tmp_path, fault):
    """Its records are looked at: one holds an image that is none."""
    folder, members = tmp_path / "s", {"jpg": b"no image", "bin": bytes(2000)}
    folder.mkdir()
    with webdataset.TarWriter(str(folder / "0.tar"), encoder=False, mtime=0) as writer:
        for number in range(4):
            writer.write({"__key__": str(number), **(members if number == 1 else {"bin": bytes(2000)})})
    data = (folder / "0.tar").read_bytes()
    bad = '{"key": "0", "n": 2}\n' if fault != "cut" else ""
    (folder / "0.meta.jsonl").write_text(bad + "".join(f'{{"key": "{number}", "n": 1}}\n' for number in range(4)))
    (folder / "0.tar").write_bytes(data if fault == "sidecar" else data[:10_000])
    fails = {"single_process_fn": function("failing")}
    found = checked(source("MetaDistributedWebDataset", folder, meta_names=["n"], **fails))
    assert found.num_records == (4 if fault == "sidecar" else 3)
    assert found.counts == {"damaged": 2 if fault == "both" else 1, "image": 1}


def test_signed_urls_are_asked_as_they_are(tmp_path, monkeypatch):
    """Not by the bare url, which is what findings say."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path))
    with http_server({"b/0.jsonl": b'{"n": 1}\n{"n":\n'}) as server:
        found = checked(source("JsonlIterableDataset", f"{server.url}/b/0.jsonl?sig=k4N"))
        asked = [request.target for request in server.log if "0.jsonl" in request.target]
    assert found.num_records == 1
    assert set(asked) == {"/b/0.jsonl?sig=k4N"}
    assert "k4N" not in str(found.faults)


def test_lines_of_sidecars_without_a_record_are_counted(tmp_path):
    """And records without a line, and keys that a line gives twice."""
    tars = Path(write_tars(tmp_path, [3]))
    sidecar = tars / "00000.meta.jsonl"
    lines = sidecar.read_text().splitlines()
    lines[1:2] = ['{"key": "gone", "score": 1}', '{"key": "gone too", "score": 1, "score": 2}']
    sidecar.write_text("\n".join(lines) + "\n")
    found = checked(source("MetaDistributedWebDataset", tars, meta_names=["score"]))
    assert found.num_records == 3
    messages = " ".join(fault.message for fault in found.faults if fault.kind == "sidecar")
    assert "2 sidecar lines without a record" in messages
    assert "1 records without a sidecar line" in messages
    assert found.counts["key given twice"] == 1


def test_images_of_map_style_datasets_are_named_by_their_files(tmp_path):
    """One that is cut, which only its pixels show, one that is none, and one that is gone."""
    folder = tmp_path / "all" / "cat"
    folder.mkdir(parents=True)
    Image.effect_noise((64, 64), 50).convert("RGB").save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:3000])
    (folder / "no.png").write_bytes(b"no image")
    rows = "".join(f'{{"imagepath": "all/cat/{name}.png"}}\n' for name in ("cut", "no", "gone"))
    (tmp_path / "rows.jsonl").write_text(rows)
    lines = {"target": "streamdata.ImageJsonlDataset", "name": "lines", "percent": 1}
    lines["params"] = {"jsonl_path": str(tmp_path / "rows.jsonl")}
    resized = {"target": "streamdata.DecodeImages", "params": {"fields": "image", "size": 8}}
    found = checked(source("ImageFolderDataset", tmp_path / "all", "folder", single_process_fn=resized), lines)
    wanted = [
        ("folder", "damaged", "no"), ("folder", "function", "cut"), ("folder", "image", "cut"),
        ("lines", "damaged", "gone"), ("lines", "damaged", "no"), ("lines", "image", "cut"),
    ]  # fmt: skip
    told = sorted((fault.source, fault.kind, fault.message) for fault in found.faults)
    assert [(name, kind) for name, kind, _ in told] == [(name, kind) for name, kind, _ in wanted]
    for name, kind, file in wanted:
        assert f"all/cat/{file}.png" in str([message for *which, message in told if which == [name, kind]])


def test_images_that_do_not_decode_are_named(tmp_path):
    """By shard and key; no function is needed for that."""
    tars = Path(write_tars(tmp_path, [4], images=True, sidecars=False))
    tar = tars / "00000.tar"
    data = bytearray(tar.read_bytes())
    first = data.index(b"\xff\xd8\xff")
    data[first : first + 400] = bytes(400)
    tar.write_bytes(bytes(data))
    found = checked(source("MetaDistributedWebDataset", tars))
    assert found.num_records == 4
    (fault,) = found.faults
    assert fault.kind == "image"
    assert "key 'r00000'" in fault.message
    assert "field 'jpg'" in fault.message


@pytest.mark.parametrize("kind", ["single_process_fn", "process_fn"])
def test_each_record_that_a_function_fails_at_is_named(tmp_path, kind):
    """A stream function begins again after it."""
    lines = write_jsonl(tmp_path, [20])
    name = "failing" if kind == "single_process_fn" else "failing_stream"
    found = checked(source("JsonlIterableDataset", lines, **{kind: function(name)}))
    assert found.num_records == 20
    assert found.counts == {"function": 4}
    assert [fault.message.split("key ")[1].split(",")[0].split(":")[0] for fault in found.faults] == [
        "'0'", "'5'", "'10'", "'15'",
    ]  # fmt: skip


def test_what_functions_drop_is_no_fault(tmp_path):
    """It is counted."""
    found = checked(source("JsonlIterableDataset", write_jsonl(tmp_path, [20]), single_process_fn=function("odd")))
    assert (found.num_records, found.num_dropped, found.counts.total()) == (20, 10, 0)


def test_a_function_that_returns_no_sample_is_a_fault(tmp_path):
    """A number is none."""
    found = checked(source("JsonlIterableDataset", write_jsonl(tmp_path, [2]), single_process_fn=function("number")))
    assert found.counts == {"function": 2}
    assert "expected a dict, got int" in found.faults[0].message


def test_faults_without_number_take_no_memory(tmp_path):
    """The first of a shard are listed, the others counted."""
    (tmp_path / "0.jsonl").write_text("broken\n" * 1000)
    found = checked(source("JsonlIterableDataset", tmp_path))
    assert found.counts == {"damaged": 1000}
    assert len(found.faults) == MAX_LISTED


@pytest.mark.parametrize("target", ["Rows", "Stream"])
def test_datasets_without_files_are_read_too(target):
    """After a record of a map-style dataset that cannot be read the next one is; a stream ends there."""
    dataset = {"target": f"tests.tools.plan.datasets.{target}", "params": {}, "name": "own", "percent": 1}
    found = checked(dataset)
    assert found.num_records == {"Rows": 24_999, "Stream": 7}[target]
    (fault,) = found.faults
    assert (fault.kind, fault.source) == ("damaged", "own")
    assert "7" in fault.message


def test_none_is_damage_unless_a_function_takes_it():
    """As in a run."""
    dataset = {"target": "tests.tools.plan.datasets.Holes", "params": {}, "name": "own", "percent": 1}
    (fault,) = checked(dataset).faults
    assert fault.message.startswith("index 1: SourceError: source 'own' (Holes): expected a record, got None")
    assert not checked(dataset | {"single_process_fn": {"target": "builtins.dict"}}).faults


def test_sources_have_their_dotted_names_through_includes(tmp_path, monkeypatch):
    """What an include sets counts, and so do options of the mixtures above."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.jsonl").write_text("broken\n")
    inner = {"target": "streamdata.MergedDataset", "params": {"datasets": [source("JsonlIterableDataset", tmp_path)]}}
    (tmp_path / "inner.yaml").write_text(json.dumps(inner))
    found = checked({"include": "inner.yaml", "name": "outer", "percent": 1})
    assert [fault.source for fault in found.faults] == ["outer.a"]


def test_a_line_may_be_as_long_as_the_source_allows(tmp_path):
    """One that is longer is damage."""
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(b'{"x": "' + b"y" * 300 + b'"}\n{"x": 1}\n'))
    few, many = (source("JsonlIterableDataset", tmp_path, limits={"line_bytes": most}) for most in (100, 1000))
    assert checked(few).counts == {"damaged": 1}
    assert (checked(many).num_records, checked(many).counts.total()) == (2, 0)


def test_a_broken_line_of_a_sidecar_ends_nothing(tmp_path):
    """Beside a tar that is read from its start, whose sidecar is looked at apart."""
    tars = Path(write_tars(tmp_path, [3]))
    (tars / "00000.tar.gz").write_bytes(gzip.compress((tars / "00000.tar").read_bytes()))
    (tars / "00000.tar").unlink()
    with (tars / "00000.meta.jsonl").open("a") as file:
        file.write('{broken\n{"key": "a", "key": "b"}\n')
    found = checked(source("MetaDistributedWebDataset", tars, meta_names=["score"]))
    assert found.counts == {"damaged": 1, "key given twice": 1, "sidecar": 1}  # the last of what is of no record


def test_a_damaged_row_group_is_one_fault_and_the_others_are_read(tmp_path):
    """It says how many records it cost."""
    path = tmp_path / "0.parquet"
    table = pa.table({"n": range(9000), "text": [str(number * 7919) for number in range(9000)]})
    pq.write_table(table, path, row_group_size=3000, use_dictionary=False)
    begin = pq.read_metadata(path).row_group(1).column(1).data_page_offset + 60
    data = bytearray(path.read_bytes())
    data[begin : begin + 200] = b"\xff" * 200
    path.write_bytes(data)
    found = checked(source("ParquetDataset", path))
    (fault,) = found.faults
    assert (found.num_records, found.counts) == (6000, {"damaged": 1})
    assert f"{path}: 3,000 records, from row 3000 on, were not read" in fault.message


def test_rows_beside_one_without_a_type_of_pythons_are_read(tmp_path):
    """Each such row is named once."""
    times = pa.array([number * 1000 + (number in (0, 5, 6, 2999)) for number in range(3000)]).cast(pa.timestamp("ns"))
    pq.write_table(pa.table({"time": times}), tmp_path / "0.parquet")
    found = checked(source("ParquetDataset", tmp_path / "0.parquet"))
    assert found.num_records == 2996
    assert [fault.message.split("row ")[1].split(",")[0] for fault in found.faults] == ["0", "5", "6", "2999"]


def test_each_broken_row_of_csv_is_named_and_the_others_are_read(tmp_path):
    """An unclosed quote at the end, too, and what is no text."""
    (tmp_path / "0.csv").write_text('a,b\n1,2\n3\n4,5,6\n7,8\n"x"y,1\n9,9\n"x')
    (tmp_path / "1.csv").write_bytes(b"a,b\n1,2\n\xff,1\n3,4\n")
    found = checked(source("CsvDataset", tmp_path))
    places = [fault.message.partition(" ")[0].removeprefix(f"{tmp_path}/") for fault in found.faults]
    assert (found.num_records, places) == (5, ["0.csv:3:", "0.csv:4:", "0.csv:6:", "0.csv:8:", "1.csv:3:"])


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_sidecars_without_a_record_are_named(tmp_path, packed):
    """And records without a line."""
    tar = Path(write_tars(tmp_path, [3])) / "00000.tar"
    sidecar = tar.parent / "00000.meta.jsonl"
    lines = sidecar.read_text().splitlines()
    lines[1] = '{"key": "gone", "score": 1}'
    sidecar.write_text("\n".join(lines) + "\n")
    if packed:
        (tar.parent / "00000.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
        tar.unlink()
    found = checked(source("MetaDistributedWebDataset", tar.parent, meta_names=["score"]))
    messages = sorted(fault.message.partition(": ")[2] for fault in found.faults)
    line = f"1 sidecar lines without a record: {sidecar}:2, key 'gone'"
    assert messages == ["1 records without a sidecar line: key 'r00001'", line]


@pytest.mark.parametrize("kind", ["single_process_fn", "process_fn"])
def test_a_function_that_exits_fails_at_one_record(tmp_path, kind):
    """As with any other error."""
    name = "exiting" if kind == "single_process_fn" else "exiting_stream"
    found = checked(source("JsonlIterableDataset", write_jsonl(tmp_path, [20]), **{kind: function(name)}))
    assert (found.num_records, found.counts) == (20, {"function": 4})
    assert all(f"{kind} raised SystemExit: 3" in fault.message for fault in found.faults)


def test_a_stream_function_that_takes_no_record_does_not_hang(tmp_path):
    """Its records are looked at without it."""
    found = checked(source("JsonlIterableDataset", write_jsonl(tmp_path, [20]), process_fn=function("refusing_stream")))
    assert (found.num_records, found.counts) == (20, {"function": 1})


def test_messages_of_functions_are_one_line_and_cut(tmp_path):
    """Whatever they quote."""
    data = source("JsonlIterableDataset", write_jsonl(tmp_path, [1]), single_process_fn=function("wordy"))
    (fault,) = checked(data).faults
    assert "ValueError: no\\nerror: forged line" in fault.message
    assert len(fault.message) < 300 + len(str(tmp_path))


def test_an_error_without_text_has_its_place(tmp_path):
    """The function goes on after it."""
    found = checked(source("JsonlIterableDataset", write_jsonl(tmp_path, [20]), single_process_fn=function("mute")))
    assert (found.num_records, found.counts) == (20, {"function": 4})
    assert "key '5'" in found.faults[1].message
    assert "raised MuteError: (no text, since its __str__ raised LookupError)" in found.faults[1].message


def test_elements_of_an_array_are_named_as_elements(tmp_path):
    """Lines of the file are others."""
    text = '[\n {\n  "a": 1\n },\n {\n  "a": 1,\n  "a": 2\n },\n {\n  "a": oops\n }\n]\n'
    (tmp_path / "a.json").write_text(text)
    found = checked(source("JsonlIterableDataset", tmp_path / "a.json"))
    places = [fault.message.split(": ")[0].removeprefix(f"{tmp_path}/") for fault in found.faults]
    assert places[0] == "a.json:element 2"
    assert places[1].startswith("a.json:element 3:")
