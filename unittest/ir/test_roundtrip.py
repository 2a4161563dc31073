"""Every text prints as it was read, untouched and after every operation was cut into segments."""

from __future__ import annotations

import pytest
from ir_helpers import FIXTURES, NOT_FOR_HOST, check_contract, reprint
from triton_ext.ir import parse


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
class TestFixtures:
    def test_prints_as_read(self, path):
        text = path.read_text()
        assert str(parse(text, path.name)) == text

    def test_prints_as_read_from_segments(self, path):
        text = path.read_text()
        assert reprint(parse(text, path.name)) == text

    def test_contract(self, path):
        check_contract(parse(path.read_text(), path.name))

    def test_host_accepts(self, path, host):
        if path.name in NOT_FOR_HOST:
            pytest.skip("operations of no host")
        host.needs_present_syntax()
        assert host.text(path.read_text())

    @pytest.mark.parametrize("end", ["", "\n", "\n\n// end\n", "\r\n"])
    def test_line_ends_and_footers(self, path, end):
        text = path.read_text().rstrip() + end
        assert str(parse(text)) == text
        assert reprint(parse(text)) == text
        crlf = text.replace("\n", "\r\n")
        assert str(parse(crlf)) == crlf
        assert reprint(parse(crlf)) == crlf


def test_corpus_prints_as_read(corpus):
    for path in corpus:
        text = path.read_text()
        module = parse(text, str(path))
        assert str(module) == text, path
        assert reprint(module) == text, path


def test_corpus_contract(corpus):
    # Each tenth file keeps the test short; neighbours in the list are alike.
    for path in corpus[::10]:
        check_contract(parse(path.read_text(), str(path)))


def test_corpus_types_are_all_known(corpus):
    """No result or argument that a host prints is left without a type."""
    for path in corpus:
        for op in parse(path.read_text(), str(path)).walk():
            values = [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]
            unknown = [value.name for value in values if value.known_type is None]
            assert not unknown, (path, op.text)


@pytest.mark.parametrize(
    "text", ["", "\n", "// nothing\n", "#a = 1\n", "module {\n}\n", "module {}"]
)
def test_small_texts(text):
    module = parse(text)
    assert str(module) == text
    assert reprint(module) == text
    assert module.op.name == "builtin.module"
    assert module.body == ()
