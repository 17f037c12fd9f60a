"""Made-up conversations: what a template leaves of them, what nobody had computed, and traces."""

import io
import json
from itertools import pairwise

import pytest

from hybrid_pages import InvalidArgumentError, cli
from hybrid_pages.cli.lab import Talk
from hybrid_pages.lab import Trace
from hybrid_pages.lab.chat_template import Message, Reasoning, Special, Template
from hybrid_pages.lab.computed import Computed, computed_by, ideal, trace
from hybrid_pages.lab.conversations import KINDS, ConversationRequest, Workload

SYSTEM = Message(Special.SYSTEM, (100, 101, 102))
ASKED = Message(Special.USER, (200, 201))
MORE = Message(Special.USER, (300,))


def common(one, other):
    """How many first tokens two texts share."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared


def left_at(reasoning):
    """A prompt, and where the next turn's leaves what was computed for it, counted from its end."""
    template = Template(reasoning)
    prompt = template.prompt([SYSTEM, ASKED])
    answer = template.answer([400, 401], [500, 501])
    later = template.prompt([SYSTEM, ASKED, answer, MORE])
    return common([*prompt, *answer.tokens], later) - len(prompt), len(answer.tokens)


@pytest.mark.parametrize(("reasoning", "behind"), [(Reasoning.NONE, 3), (Reasoning.KEPT, 8)])
def test_a_next_turn_goes_on_behind_an_answer_that_is_kept(reasoning, behind):
    assert left_at(reasoning) == (behind, behind)


@pytest.mark.parametrize(("reasoning", "before"), [(Reasoning.DROPPED, 2), (Reasoning.EMPTIED, 1)])
def test_dropped_reasoning_leaves_a_prompt_a_few_tokens_before_its_end(reasoning, before):
    assert left_at(reasoning)[0] == -before


def test_reasoning_stays_until_the_user_says_something_else():
    template = Template(Reasoning.DROPPED)
    call = template.answer([400], [Special.CALL, 500, Special.CALLED])
    prompt = template.prompt([SYSTEM, ASKED])
    result = Message(Special.TOOL, (600,))
    assert common([*prompt, *call.tokens], template.prompt([SYSTEM, ASKED, call, result])) == len(
        prompt
    ) + len(call.tokens)


def test_an_answer_that_was_cut_off_ends_all_the_same():
    cut = Message(Special.ASSISTANT, (500,))
    prompt = Template().prompt([ASKED, cut, MORE])
    assert prompt.count(Special.END) == 3


def test_every_conversation_under_a_system_prompt_begins_with_what_is_shared():
    for name, kind in KINDS.items():
        workload = Workload(kind, sessions=4, scale=0.1)
        beginnings = workload.beginnings()
        for request in workload.requests():
            assert any(list(request.prompt[: len(text)]) == text for text in beginnings), name


@pytest.mark.parametrize("name", KINDS)
def test_a_workload_follows_from_its_seed(name):
    def made(seed):
        return list(Workload(KINDS[name], seed=seed, sessions=3, scale=0.1).requests())

    assert made(1) == made(1) != made(2)
    assert all(one.at <= other.at for one, other in pairwise(made(1)))


def test_a_models_own_answers_take_the_place_of_those_made_up():
    requests = Workload(KINDS["chat-200"], sessions=1, scale=0.1).requests()
    request = next(requests)
    own = [999] * len(request.answer)
    following = requests.send(tuple(own))
    assert own == list(following.prompt[len(request.prompt) :][: len(own)])
    with pytest.raises(InvalidArgumentError, match=r"expected \d+ tokens, found 1"):
        requests.send((1,))


def test_what_nobody_had_computed():
    def asked(prompt, answer=(9,)):
        return ConversationRequest(0, 0.0, tuple(prompt), tuple(answer))

    requests = [
        asked([1, 2, 3], [7, 8]),
        asked([1, 2, 3]),
        asked([1, 2, 3, 7, 8, 4]),
        asked([1, 5]),
    ]
    # The last token of a prompt is computed in any case, and the last of an answer never was.
    assert list(ideal(requests)) == [3, 1, 2, 1]
    assert list(ideal(requests, [[1, 2]])) == [1, 1, 2, 1]


def test_blocks_count_the_last_one_of_each_branch():
    computed = Computed()
    for text in ([1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2]):
        computed.add(text)
    assert computed.blocks(2) == 4  # 12, 34, 5, 36
    assert computed.blocks(5) == 2  # 12345, 1236


def test_a_trace_shares_a_hash_where_all_tokens_before_are_shared():
    requests = list(Workload(KINDS["chat-edited"], sessions=6, scale=0.2).requests())
    header, *lines = map(json.loads, trace(requests, 16))
    assert header["block_tokens"] == 16
    by_hash: dict[int, tuple[int, ...]] = {}
    for request, row in zip(requests, lines, strict=True):
        assert len(row["hash_ids"]) == len(request.prompt) // 16
        for block, name in enumerate(row["hash_ids"], 1):
            assert (
                by_hash.setdefault(name, request.prompt[: 16 * block])
                == request.prompt[: 16 * block]
            )
    assert len(set(by_hash.values())) == len(by_hash)


def test_what_a_request_computes_ends_before_the_last_token_of_its_answer():
    assert computed_by(ConversationRequest(0, 0.0, (1, 2), (3, 4, 5))) == (1, 2, 3, 4)


def test_the_command_writes_a_trace_that_the_lab_reads(tmp_path, capsys):
    arguments = ["--sessions", "3", "--block", "64", "--seed", "5"]
    assert cli.main(["lab", "conversations", "chat", *arguments]) == 0
    written, said = capsys.readouterr()
    path = tmp_path / "trace.jsonl"
    path.write_text(written)
    found = Trace.open(str(path))
    assert found.block_tokens == 64
    assert f"{found.requests:,} requests, {found.input_tokens:,} prompt tokens" in said


def test_the_command_knows_every_kind():
    assert [kind.value for kind in Talk] == list(KINDS)


def test_the_command_writes_tokens(capsys):
    assert cli.main(["lab", "conversations", "agent", "--sessions", "1", "--tokens"]) == 0
    rows = [json.loads(line) for line in io.StringIO(capsys.readouterr().out)]
    assert rows[0]["new_tokens"] == len(rows[0]["prompt"])
    assert rows[1]["prompt"][: len(rows[0]["prompt"])] == rows[0]["prompt"]
