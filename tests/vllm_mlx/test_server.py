"""``hybrid-pages vllm-mlx serve`` against ``vllm-mlx serve``, over HTTP: texts, reuse, faults."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import cases
import tiny
from beside import require_equal_texts_and_no_less_reuse, stock_and_ours
from http_server import NAME, serving

BUDGET_MIB = 2


@pytest.fixture(scope="module", params=["qwen3_next", "lfm2"])
def servers(request, tmp_path_factory):
    with stock_and_ours(request.param, tmp_path_factory.mktemp(request.param)) as both:
        yield both


@pytest.mark.parametrize("case", cases.CASES)
def test_texts_are_equal_and_never_less_is_reused(servers, case):
    require_equal_texts_and_no_less_reuse(servers, case)


def test_forks_inside_a_message_and_resends_are_reused(servers):
    stock, ours = servers
    for server, most in ((stock, 0), (ours, 1)):
        found = [each[1] for each in cases.document_and_questions(server, document=250)]
        assert (min(found[1:]) >= 224) == bool(most), found
        prompt = cases.words(90, 95)
        again = [server.complete(prompt)[1:] for _ in range(2)]
        assert again == [(0, 90), (89 * most, 90)]


def test_concurrent_requests_are_those_of_stock_alone(servers):
    """Prompts of different lengths at once, which stock itself computes wrongly."""
    stock, ours = servers
    messages = [
        [cases.system(cases.words(70, 90)), cases.user(cases.words(5 + 23 * index, 91 + index))]
        for index in range(6)
    ] * 2
    alone = [stock.chat(each)[0] for each in messages]
    for _ in range(2):
        with ThreadPoolExecutor(len(messages)) as pool:
            found = [each[0] for each in pool.map(ours.chat, messages)]
        assert found == alone


def test_streams_and_clients_that_go_away(servers):
    stock, ours = servers
    messages = [cases.system(cases.words(40, 110)), cases.user(cases.words(60, 111))]
    expected = stock.stream(messages, 12)
    with ThreadPoolExecutor(6) as pool:
        gone = [pool.submit(ours.stream, messages, 400, lines=lines) for lines in (1, 3, 9)]
        kept = [pool.submit(ours.stream, messages, 12) for _ in range(3)]
        assert [each.result() for each in kept] == [expected] * 3
        for each in gone:
            each.result()
    assert ours.stream(messages, 12) == expected
    assert ours.chat(messages, 12)[1] == 106
    assert ours.healthy()


def test_a_client_that_goes_away_while_its_prompt_is_computed(servers):
    _, ours = servers
    prompt = [cases.user(cases.words(3000, 112))]
    ours.stream(prompt, 4, lines=0)
    assert ours.complete("w11 w12")[2] == 2
    first, *_ = ours.chat(prompt)
    assert ours.chat(prompt)[0] == first


def test_an_empty_prompt_fails_alone(servers):
    _, ours = servers
    status, answer = ours.post("/v1/completions", dict(model=NAME, prompt="", max_tokens=4))
    assert (status, answer["detail"][:32]) == (400, "prompt: expected at least one to")
    assert "Exception in ASGI" not in ours.logged()
    assert ours.complete("w11 w12")[2] == 2


def test_penalties_see_what_was_restored(tmp_path):
    """Stock forgets them for all requests behind one that had none."""
    model = tiny.save("qwen3_next", tmp_path / "model")
    prompt, more = cases.words(100, 96), dict(repetition_penalty=1.5)
    with (
        serving(model, tmp_path / "stock.log", ours=False) as stock,
        serving(model, tmp_path / "ours.log", ours=True) as ours,
    ):
        expected = stock.complete(prompt, tokens=12, **more)[0]
        plain = stock.complete(prompt, tokens=12)[0]
        assert plain != expected
        for _ in range(2):
            assert ours.complete(prompt, tokens=12)[0] == plain
            assert ours.complete(prompt, tokens=12, **more)[0] == expected
        assert stock.complete(prompt, tokens=12, **more)[0] == plain


def test_every_kind_of_answer_says_what_was_cached(servers):
    _, ours = servers
    words = cases.words(80, 97)
    message = dict(model=NAME, messages=[cases.user(words)], max_tokens=4, temperature=0)
    asked = dict(model=NAME, input=words, max_output_tokens=4, temperature=0)
    ours.post("/v1/messages", message)
    usage = ours.post("/v1/messages", message)[1]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, 84)
    usage = ours.post("/v1/responses", asked)[1]["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 84}
    body = message | dict(stream=True, stream_options=dict(include_usage=True))
    _, raw = ours.post("/v1/chat/completions", body)
    (usage,) = [
        found
        for line in raw.decode().splitlines()
        if line.startswith("data: {")
        if not json.loads(line[6:])["choices"]
        if (found := json.loads(line[6:])["usage"])
    ]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 84}
    two = dict(model=NAME, prompt=[words, words], max_tokens=4, temperature=0)
    usage = [ours.post("/v1/completions", two)[1]["usage"] for _ in range(2)][1]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2 * 79}


def test_the_log_says_what_is_not_batched(servers):
    _, ours = servers
    alone = "prompts are computed one at a time" in ours.logged()
    assert alone == ("qwen3_next" in str(ours.log))


@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_the_budget_holds(tmp_path, name):
    model = tiny.save(name, tmp_path / "model")
    flags = ["--cache-memory-mb", str(BUDGET_MIB), "--block-tokens", "16"]
    with serving(model, tmp_path / "log", *flags, ours=True) as ours:
        ours.complete("w11 w12", tokens=2)
        before, _ = ours.held()
        for index in range(40):
            ours.complete(cases.words(300, 200 + index), tokens=2)
            if index % 10 == 9:
                active, stored = ours.held()
                assert stored <= BUDGET_MIB << 20
                assert active - before < 1_000_000
        assert stored > (BUDGET_MIB << 20) / 2
    assert "could not" not in ours.logged()


def numbers(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/v1/cache/stats")
    return json.loads(connection.getresponse().read())["engine_cache"]


def test_the_numbers_say_what_was_not_stored(tmp_path):
    model = tiny.save("qwen3_next", tmp_path / "model")
    flags = ["--host-gb", "0.0008", "--block-tokens", "16"]
    with serving(model, tmp_path / "log", *flags, ours=True) as ours:
        texts = [ours.complete(cases.words(1500, 98)) for _ in range(2)]
        assert texts[0] == texts[1]
        found = numbers(ours)
        assert found["skipped_entries"]["no_room"] > 0
        assert found["failed_loads"] == found["failed_stores"] == 0
        assert found["failures"] == {}


def test_a_restarted_server_finds_its_prompts_on_disk(tmp_path):
    model = tiny.save("qwen3_next", tmp_path / "model")
    flags = ["--disk-path", str(tmp_path / "disk"), "--disk-gb", "0.1"]
    prompt = cases.words(90, 300)
    texts = []
    for expected in (0, 64):  # whole blocks
        with serving(model, tmp_path / "log", *flags, ours=True) as ours:
            text, reused, _ = ours.complete(prompt)
            texts.append(text)
            assert reused == expected
            (disk,) = numbers(ours)["tiers"]
            assert (disk["read"] > 0) == (expected > 0)
            assert disk["corrupt_reads"] == disk["failed_writes"] == 0
    assert texts[0] == texts[1]


def test_an_unloaded_model_comes_back_with_an_empty_cache(tmp_path):
    model = tiny.save("lfm2", tmp_path / "model")
    prompt = cases.words(90, 301)
    flags = ["--lazy-load-model", "--auto-unload-idle-seconds", "1"]
    with serving(model, tmp_path / "log", *flags, ours=True) as ours:
        first = ours.complete(prompt)
        assert ours.complete(prompt) == (first[0], 89, 90)
        ours.wait_for("BatchedEngine stopped")
        assert ours.complete(prompt) == (first[0], 0, 90)
        assert ours.complete(prompt) == (first[0], 89, 90)
