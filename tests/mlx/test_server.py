"""``hybrid-pages mlx-server`` against ``mlx_lm.server``, over HTTP: texts, reuse, faults."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import cases
import tiny
from beside import require_equal_texts_and_no_less_reuse, stock_and_ours
from http_server import serving

BUDGET = 1_000_000


@pytest.fixture(scope="module", params=["qwen3_next", "jamba"])
def servers(request, tmp_path_factory):
    with stock_and_ours(request.param, tmp_path_factory.mktemp(request.param)) as both:
        yield both


@pytest.mark.parametrize("case", cases.CASES)
def test_texts_are_equal_and_never_less_is_reused(servers, case):
    require_equal_texts_and_no_less_reuse(servers, case)


def test_forks_inside_a_message_are_reused(servers):
    """What mlx-lm's server computes again each time."""
    stock, ours = servers
    assert not any(reused for _, reused, _ in cases.document_and_questions(stock, document=250))
    found = [reused for _, reused, _ in cases.document_and_questions(ours, document=250)]
    assert min(found[1:]) >= 224, found


def test_concurrent_requests(servers):
    stock, ours = servers
    messages = [
        [cases.system(cases.words(70, 90)), cases.user(cases.words(5 + 23 * index, 91 + index))]
        for index in range(4)
    ] * 2
    alone = [stock.chat(each)[0] for each in messages]
    with ThreadPoolExecutor(len(messages)) as pool:
        found = [each[0] for each in pool.map(ours.chat, messages)]
    assert found == alone


def test_streams_and_clients_that_go_away(servers):
    stock, ours = servers
    messages = [cases.system(cases.words(40, 110)), cases.user(cases.words(60, 111))]
    expected = stock.stream(messages, 12)
    assert expected == stock.chat(messages, 12)[0]
    with ThreadPoolExecutor(6) as pool:
        gone = [pool.submit(ours.stream, messages, 400, lines=lines) for lines in (1, 3, 9)]
        kept = [pool.submit(ours.stream, messages, 12) for _ in range(3)]
        assert [each.result() for each in kept] == [expected] * 3
        for each in gone:
            each.result()
    assert ours.chat(messages, 12)[0] == expected
    assert ours.healthy()


def test_a_prompt_that_equals_a_stored_one_is_answered(servers):
    """It ends the threads of mlx-lm's server: so stock is not asked here."""
    _, ours = servers
    prompt = cases.words(90, 95)
    first = ours.complete(prompt)
    shorter = " ".join(prompt.split()[:-1])
    for _ in range(2):
        assert ours.complete(prompt)[0] == first[0]
        assert ours.complete(shorter)[2] == 89
        assert ours.complete(f"{prompt} {first[0]}")[2] == 98
    status, _ = ours.post("/v1/completions", dict(prompt="", max_tokens=4))
    assert status != 200
    assert ours.healthy()


def test_samplers_penalties_and_stops(servers):
    stock, ours = servers
    prompt = cases.words(100, 96)
    for more in (
        dict(repetition_penalty=1.5, repetition_context_size=80),
        dict(stop=["w50", "w60", "w70", "w80"]),
        dict(logprobs=True, top_logprobs=3),
        dict(logit_bias={"33": 4.0}),
    ):
        expected = stock.complete(prompt, tokens=12, **more)[0]
        assert [ours.complete(prompt, tokens=12, **more)[0] for _ in range(2)] == [expected] * 2
    # Requests with a seed are not batched.
    more = dict(seed=7, repetition_penalty=1.3)
    body = dict(prompt=prompt, max_tokens=12, temperature=0.9, **more)
    texts = {ours.post("/v1/completions", body)[1]["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


def test_the_log_says_which_models_are_served_one_by_one(servers):
    _, ours = servers
    ours.complete("w11 w12")
    alone = "is served one request at a time" in ours.logged()
    assert alone == ("jamba" in ours.logged())


@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_the_budget_holds(tmp_path, name):
    model = tiny.save(name, tmp_path / "model")
    flags = ["--prompt-cache-bytes", str(BUDGET), "--block-tokens", "16"]
    with serving(model, tmp_path / "log", *flags, ours=True) as ours:
        ours.complete("w11 w12", tokens=2)
        before, _ = ours.held()
        for index in range(30):
            ours.complete(cases.words(300, 200 + index), tokens=2)
            if index % 10 == 9:
                active, stored = ours.held()
                assert stored <= BUDGET
                assert active - before < 1_000_000
        assert stored > BUDGET / 2
    assert "could not" not in ours.logged()


def test_another_model_has_prompts_of_its_own(tmp_path):
    """The same ids, the same shapes, other weights."""
    folders = [str(tiny.save("lfm2", tmp_path / f"model{seed}", seed=seed)) for seed in range(2)]
    prompt = cases.words(80, 300)
    with (
        serving(folders[0], tmp_path / "stock.log", ours=False) as stock,
        serving(folders[0], tmp_path / "ours.log", ours=True) as ours,
    ):
        expected = [stock.complete(prompt, model=folder)[0] for folder in folders]
        assert expected[0] != expected[1]
        for index in (0, 1, 1, 0):
            assert ours.complete(prompt, model=folders[index])[0] == expected[index]
        assert ours.complete(prompt, model=folders[0])[1] == 79


@pytest.mark.parametrize("flags", [["--kv-bits", "8", "--kv-group-size", "32"], ["--draft-model"]])
def test_what_is_left_to_mlx_lm_gives_its_texts(tmp_path, flags):
    model = tiny.save("llama", tmp_path / "model", head_dim=32)
    flags = [*flags, str(model)] if flags == ["--draft-model"] else flags
    prompt = cases.words(80, 301)
    with (
        serving(model, tmp_path / "stock.log", *flags, ours=False) as stock,
        serving(model, tmp_path / "ours.log", *flags, ours=True) as ours,
    ):
        for text in (prompt, prompt, f"{prompt} w11 w12"):
            assert ours.complete(text)[0] == stock.complete(text)[0]
        assert "mlx-lm's own cache" in ours.logged()


def test_requests_with_a_seed_are_not_batched_and_cached(tmp_path):
    model = tiny.save("lfm2", tmp_path / "model")
    body = dict(prompt=cases.words(90, 302), max_tokens=12, temperature=0.8, seed=3)
    with (
        serving(model, tmp_path / "stock.log", ours=False) as stock,
        serving(model, tmp_path / "ours.log", ours=True) as ours,
    ):
        expected = stock.post("/v1/completions", body)[1]["choices"][0]["text"]
        for _ in range(3):
            answer = ours.post("/v1/completions", body)[1]
            assert answer["choices"][0]["text"] == expected
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 89
