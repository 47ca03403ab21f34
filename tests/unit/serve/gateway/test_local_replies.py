"""What Envoy says by itself: always a sentence of ours."""

from __future__ import annotations

from holdfast.serve.gateway.local_replies import OWN_TEXT, REPLIES, config, text


def test_every_answer_of_envoy_has_a_sentence_a_word_and_an_id_in_both_protocols() -> None:
    mappers = config()["mappers"]
    assert len(mappers) == 2 * (len(REPLIES) + 1)
    for grpc, rest in zip(mappers[::2], mappers[1::2], strict=True):
        added = [
            {each["header"]["key"]: each["header"]["value"] for each in one["headers_to_add"]}
            for one in (grpc, rest)
        ]
        assert all(one["x-holdfast-error"] and one["x-request-id"] for one in added)
        assert added[0]["grpc-status"].isdigit() and "grpc-status" not in added[1]
        said = grpc["body_format_override"]["text_format_source"]["inline_string"]
        assert said == rest["body_format_override"]["json_format"]["error"]
        assert said == OWN_TEXT or "fix: " in said
    # The last one is for whatever is left.
    (any_error,) = [
        each["status_code_filter"]["comparison"]
        for each in mappers[-1]["filter"]["and_filter"]["filters"]
        if "status_code_filter" in each
    ]
    assert (any_error["op"], any_error["value"]["default_value"]) == ("GE", 400)


def test_a_sentence_has_only_the_lines_that_there_are() -> None:
    assert text("a") == "a"
    assert text("a", "b", "c") == "a\nwhy: b\nfix: c"
