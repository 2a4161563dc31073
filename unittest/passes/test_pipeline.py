"""The text of pipelines: what it means, how it prints, and where it is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_ext.errors import PipelineError
from triton_ext.passes import PassSpec, Pipeline, parse_pipeline


def test_the_example_of_the_docstring():
    pipeline = parse_pipeline("builtin.module(a{x=1 y=true},b,tt.func(c))")
    nested = Pipeline("tt.func", (PassSpec("c"),))
    first = PassSpec("a", {"x": "1", "y": "true"})
    assert pipeline == Pipeline("builtin.module", (first, PassSpec("b"), nested))
    assert str(pipeline) == "builtin.module(a{x=1 y=true},b,tt.func(c))"
    assert [spec.name for spec in pipeline.specs()] == ["a", "b", "c"]
    assert hash(pipeline) == hash(parse_pipeline(str(pipeline)))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "builtin.module()"),
        ("a", "builtin.module(a)"),
        (" a , b ", "builtin.module(a,b)"),
        ("builtin.module()", "builtin.module()"),
        ("any(a)", "any(a)"),
        ("tt.func(a)", "builtin.module(tt.func(a))"),
        ("builtin.module(a),b", "builtin.module(builtin.module(a),b)"),
        ("a{}", "builtin.module(a)"),
        ("a{ fast }", "builtin.module(a{fast=true})"),
        ("a{x='two words' y=\"it's\"}", "builtin.module(a{x='two words' y=\"it's\"})"),
        ("a{x={p=1 q={2}}}", "builtin.module(a{x='p=1 q={2}'})"),
        ("a{x=1,2,3}", "builtin.module(a{x=1,2,3})"),
        ("a{x=}y}", None),
        ("convert-triton-to-tritongpu{target=cuda:90 num-warps=4}", None),
    ],
)
def test_texts(text, printed):
    if text == "a{x=}y}":
        with pytest.raises(PipelineError, match="expected a value behind 'x='"):
            parse_pipeline(text)
        return
    pipeline = parse_pipeline(text)
    assert str(pipeline) == (printed or f"builtin.module({text})")
    assert parse_pipeline(str(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("a,", 3, "expected the name of a pass, found the end"),
        (",a", 1, "expected the name of a pass, found ','"),
        ("a b", 3, "expected ',' or the end, found 'b'"),
        ("a(b", 4, "expected ',' or ')', found the end"),
        ("a(b}", 4, "expected ',' or ')', found '}'"),
        ("a)", 2, "expected ',' or the end, found ')'"),
        ("a{x=1", 2, "expected '}' to match this '{', found the end"),
        ("a{=1}", 3, "expected the name of an option or '}', found '='"),
        ("a{x=1 x=2}", 7, "option 'x' is given twice"),
        ("a{x='1}", 5, "expected ' at the end of the value of 'x', found the end"),
        ("a{x={1", 5, "expected '}' to match this '{', found the end"),
        ("a{x={1}", 2, "expected '}' to match this '{', found the end"),
        ("a{x=1}(b)", 7, "expected ',' or the end, found '('"),
        ("a(" * 40, 66, "pipelines are nested more than 32 deep"),
    ],
)
def test_errors(text, column, message):
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text)
    assert (caught.value.message, caught.value.line, caught.value.column) == (message, 1, column)


def test_error_has_a_caret_in_its_line():
    with pytest.raises(PipelineError) as caught:
        parse_pipeline("builtin.module(a,\n  b{x=1\n)")
    assert str(caught.value) == (
        "<pipeline>:3:1: error: expected the name of an option or '}', found ')'\n)\n^"
    )


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)
VALUES = st.text(alphabet="ab1,:=. '{}()-", max_size=8).filter(
    lambda text: not ("'" in text and text.count("{") != text.count("}")) and "}" not in text[:1]
)


def specs():
    return st.builds(PassSpec, NAMES, st.dictionaries(NAMES, VALUES, max_size=3))


def pipelines():
    return st.recursive(
        st.builds(Pipeline, st.just("tt.func"), st.lists(specs(), max_size=3).map(tuple)),
        lambda inner: st.builds(
            Pipeline,
            st.sampled_from(["builtin.module", "tt.func", "any"]),
            st.lists(specs() | inner, max_size=3).map(tuple),
        ),
        max_leaves=5,
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(specs() | pipelines(), max_size=4))
def test_printed_pipelines_parse_to_themselves(items):
    pipeline = Pipeline("builtin.module", tuple(items))
    assert parse_pipeline(str(pipeline)) == pipeline


@settings(max_examples=300, deadline=None, database=None)
@given(st.text(alphabet="ab(){},='\" \n.-é", max_size=30))
def test_any_text_is_a_pipeline_or_an_error_with_a_place(text):
    error = None
    try:
        pipeline = parse_pipeline(text)
    except PipelineError as caught:
        error = caught
    if error is not None:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        return
    assert parse_pipeline(str(pipeline)) == pipeline
