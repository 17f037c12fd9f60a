"""The five cases of prefix reuse that mlx-lm's users ask for, as requests to a server."""

import tiny


def user(content):
    return dict(role="user", content=content)


def assistant(content):
    return dict(role="assistant", content=content)


def system(content):
    return dict(role="system", content=content)


def words(count, seed):
    return tiny.text(tiny.tokens(count, seed))


def document_and_questions(server, *, document=200, question=30, times=4):
    """One document in the user's message, and other questions behind it."""
    text = words(document, 10)
    return [server.chat([user(f"{text} {words(question, 11 + index)}")]) for index in range(times)]


def edited_message(server, *, length=120, times=3):
    """The last quarter of a message is written anew."""
    text = words(length, 20).split()
    kept = " ".join(text[: length * 3 // 4])
    edits = [f"{kept} {words(length // 4, 21 + index)}" for index in range(times)]
    return [server.chat([system(words(100, 29)), user(each)]) for each in [" ".join(text), *edits]]


def same_system_prompt(server, *, length=120, times=4):
    """Other users behind one system prompt."""
    prompt = system(words(length, 30))
    return [server.chat([prompt, user(words(30, 31 + index))]) for index in range(times)]


def growing_chats(server, *, chats=3, turns=4, message=60):
    """Conversations in turns: each prompt has all answers before it."""
    answers = []
    history = {
        chat: [system(words(50, 40)), user(words(message, 41 + chat))] for chat in range(chats)
    }
    for turn in range(turns):
        for chat, messages in history.items():
            found = server.chat(messages, tokens=12)
            answers.append(found)
            messages += [assistant(found[0]), user(words(message, 50 + 10 * turn + chat))]
    return answers


def agent_loop(server, *, turns=6, result=60):
    """Tool results behind one task; the client sends no reasoning back."""
    messages = [system(words(100, 60)), user(words(100, 61))]
    answers = []
    for turn in range(turns):
        found = server.chat(messages, tokens=12)
        answers.append(found)
        messages += [
            assistant(words(10, 70 + turn)),
            dict(role="tool", content=words(result, 80 + turn)),
        ]
    return answers


CASES = {
    "document, other questions": document_and_questions,
    "edited message": edited_message,
    "same system prompt": same_system_prompt,
    "growing chats": growing_chats,
    "agent loop": agent_loop,
}
