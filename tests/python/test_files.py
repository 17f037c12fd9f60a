"""Digests of a model's files: contents count, places and times do not."""

import json
import os
import shutil

import pytest

from hybrid_pages.adapter import files
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.adapter.files import digest_of, model_files

TENSOR = 3 * files.PIECE_BYTES
COUNT = 40


def safetensors(path, contents):
    """A file with a tensor of bytes for each of the contents."""
    header, offset = {}, 0
    for index, data in enumerate(contents):
        end = offset + len(data)
        header[f"t{index}"] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(contents))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors(folder / "model.safetensors", [bytes([i]) * TENSOR for i in range(COUNT)])
    (folder / "old.bin").write_bytes(bytes(range(256)) * 4096)
    (folder / "config.json").write_text('{"layers": 2}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def sampled(monkeypatch):
    """Files of this size are sampled, with one piece of each tensor."""
    monkeypatch.setattr(files, "WHOLE_BYTES", 0)
    monkeypatch.setattr(files, "_SMALL_BYTES", 4096)
    monkeypatch.setattr(files, "_END_BYTES", 512)
    monkeypatch.setattr(files, "MOST_PIECES", COUNT)


def digest(folder):
    return digest_of(model_files(folder))


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def data_start(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


@pytest.mark.parametrize("way", ["whole", "sampled"])
def test_neither_the_folder_nor_times_nor_links_change_it(model, tmp_path, way, request):
    if way == "sampled":
        request.getfixturevalue("sampled")
    before = digest(model)
    assert len(before) == 64 and digest(model) == before
    os.utime(model / "model.safetensors", (1, 1))
    moved = tmp_path / "elsewhere" / "deep"
    shutil.copytree(model, moved)
    assert digest(moved) == before
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in moved.iterdir():
        (linked / path.name).symlink_to(path)
    assert digest(linked) == before


@pytest.mark.parametrize("way", ["whole", "sampled"])
def test_every_ingredient_changes_it(model, way, request):
    if way == "sampled":
        request.getfixturevalue("sampled")
    weights = model / "model.safetensors"
    seen = {digest(model)}

    def changed():
        now = digest(model)
        assert now not in seen
        seen.add(now)

    (model / "config.json").write_text('{"layers": 3}')
    changed()
    (model / "code.py").write_text("x = 1")
    changed()
    (model / "code.py").rename(model / "coda.py")
    changed()
    with weights.open("ab") as file:
        file.write(b"\0")
    changed()
    flip(weights, 20)
    changed()
    middle = data_start(weights) + 7 * TENSOR + TENSOR // 2
    flip(weights, middle)
    changed()
    flip(weights, middle)
    flip(model / "old.bin", 0)
    changed()
    (model / "old.bin").unlink()
    changed()


def test_every_tensor_is_sampled(model, sampled):
    weights = model / "model.safetensors"
    seen = {digest(model)}
    for tensor in range(COUNT):
        flip(weights, data_start(weights) + tensor * TENSOR + TENSOR // 2)
        seen.add(digest(model))
    assert len(seen) == COUNT + 1


def test_what_is_read_of_large_files_is_bounded(model, sampled, monkeypatch):
    read = 0
    real = os.pread

    def pread(descriptor, length, offset):
        nonlocal read
        data = real(descriptor, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", pread)
    (model / "old.bin").unlink()
    digest(model)
    assert read < 0.4 * (model / "model.safetensors").stat().st_size
    # What is not read is not seen: the bound is what it costs.
    before = digest(model)
    flip(model / "model.safetensors", data_start(model / "model.safetensors") + TENSOR + 5)
    assert digest(model) == before


def test_more_tensors_than_pieces_are_sampled_too(model, sampled, monkeypatch):
    monkeypatch.setattr(files, "MOST_PIECES", 7)
    weights = model / "model.safetensors"
    before = digest(model)
    flip(weights, data_start(weights) + TENSOR // 2)
    assert digest(model) != before


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff" * 8, (20).to_bytes(8, "little") + b"not json at all, but long enough" * 400],
)
def test_a_damaged_header_is_a_file_like_any_other(model, sampled, raw):
    (model / "model.safetensors").write_bytes(raw + bytes(8192))
    before = digest(model)
    flip(model / "model.safetensors", len(raw) // 2)
    assert digest(model) != before


@pytest.mark.parametrize("offsets", [[0, 1 << 60], [-5, 3], [5, 3], ["a", "b"], [1], None])
def test_offsets_outside_of_a_file_are_not_followed(model, sampled, offsets):
    raw = json.dumps({"t": {"data_offsets": offsets}}).encode()
    data = len(raw).to_bytes(8, "little") + raw + bytes(1 << 16)
    (model / "model.safetensors").write_bytes(data)
    assert digest(model)


def test_tokenizers_and_training_leftovers_do_not_count(model):
    before = digest(model)
    (model / "tokenizer.json").write_text('{"other": 1}')
    (model / "generation_config.json").write_text("{}")
    (model / "training_args.bin").write_bytes(b"1")
    (model / "README.md").write_text("hello")
    assert digest(model) == before


def test_parts_in_folders_count(model):
    before = digest(model)
    (model / "part").mkdir()
    (model / "part" / "model.safetensors").write_bytes(b"1")
    assert digest(model) != before


@pytest.mark.parametrize("leave", ["nothing", "config"])
def test_a_folder_without_weights_is_an_error(tmp_path, leave):
    if leave == "config":
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match=r"expected weights .*\.safetensors.* found none"):
        model_files(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UnsupportedError, match=r"expected a folder with weights, found .*nowhere"):
        model_files(tmp_path / "nowhere")


def test_a_file_that_goes_is_an_error(model):
    found = model_files(model)
    (model / "config.json").unlink()
    with pytest.raises(UnsupportedError, match="expected files that can be read"):
        digest_of(found)
