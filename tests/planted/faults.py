"""Faults that the tests must find: each a text of the package, what stands there instead, and the
tests that fail then.

A text is looked for in all sources and is there once, so that a file may move without a change
here. `make test-planted` (tests/planted/run.py) plants one after another.
"""

from __future__ import annotations

from connector import CONNECTOR
from fault import Fault
from growing import GROWING


def _transformers(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, "transformers", tests)


def _mlx(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, "mlx", tests)


def _batch(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, "batch", tests)


def _python(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, "python", tests)


def _rust(crate: str, name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, crate, tests)


PACKAGE = [
    _transformers(
        "the part of a packed window page is read from another token on",
        "tensor[:, first - held.first : end - held.first]",
        "tensor[:, max(0, first - held.first - 1) : max(0, first - held.first - 1) + end - first]",
        "test_snapshot.py::test_a_cache_longer_than_its_window_is_resumed_where_it_stands",
    ),
    _transformers(
        "a batch of two rows uses the cache",
        "    if ids.shape[0] != 1:\n",
        "    if ids.shape[0] < 1:\n",
        "test_generate.py::test_what_cannot_use_the_cache_runs_without_it",
    ),
    _transformers(
        "padding in a prompt is not seen",
        'return None if whole else "padding"',
        "return None",
        "test_generate.py::test_what_cannot_use_the_cache_runs_without_it",
    ),
    _transformers(
        "a model in training mode uses the cache",
        "    if model.training:\n",
        "    if False:\n",
        "test_generate.py::test_training_mode_runs_without_it",
    ),
    _transformers(
        "zeros are stored for a state",
        "return self._states[spec].detach()",
        "return torch.zeros_like(self._states[spec])",
        "test_snapshot.py::test_a_restored_cache_is_the_stored_one_bit_for_bit",
    ),
    _transformers(
        "a static cache gets no room for the last token",
        "Request(ids, max(total - 1, config.max_cache_len or 0), named, chunk)",
        "Request(ids, max(total - 2, config.max_cache_len or 0), named, chunk)",
        "test_generate.py::test_every_name_of_a_cache_that_generate_knows_gives_its_text",
    ),
    _mlx(
        "the tail page is cut a token short",
        "page[:, : self._tail] = rows[:, start - first : start - first + self._tail]",
        "page[:, 1 : self._tail] = rows[:, start - first + 1 : start - first + self._tail]",
        "test_snapshot.py::test_a_restored_cache_goes_on_as_the_first_one_did",
    ),
    _mlx(
        "a tail that is the whole prompt is restored",
        "if start + tail < len(token_ids):",
        "if start + tail <= len(token_ids):",
        "test_prompts.py::test_at_least_one_token_is_left",
        "test_snapshot.py::test_the_deepest_of_blocks_and_tails_is_restored",
    ),
    _mlx(
        "zeros are stored for a state of mlx-lm",
        "        spec: copy.copy(found[spec.part][spec.index])\n",
        "        spec: found[spec.part][spec.index] * 0\n",
        "test_snapshot.py::test_a_restored_cache_goes_on_as_the_first_one_did",
    ),
    _mlx(
        "a row's state is stored as if nothing had been restored before it",
        "self.prompts.store(row.prompt[: row.seen + part.progress[0]], cache)",
        "self.prompts.store(row.prompt[: part.progress[0]], cache)",
        "test_batches.py::test_a_failure_is_a_miss_and_is_counted",
        "test_batches.py::test_restored_rows_are_cold_rows",
    ),
    _mlx(
        "processors see only what was not restored",
        "before = [row.prompt[: row.seen] for row in rows]",
        "before = [[] for row in rows]",
        "test_batches.py::test_processors_stay_with_their_rows",
    ),
    _batch(
        "padding takes part in a recurrence",
        "return x.masked_fill(~self.valid.reshape(shape).to(x.device), value)",
        "return x",
        "test_equality.py::test_any_operations_equal_each_row_alone",
    ),
    _batch(
        "a window is a token too wide",
        "seen &= key > query - window",
        "seen &= key >= query - window",
        "test_equality.py::test_any_operations_equal_each_row_alone",
    ),
    _batch(
        "a block that two rows share is written",
        "if self.pool.references(last) - lost[last] > 1:",
        "if self.pool.references(last) - lost[last] > 2:",
        "test_tables.py::test_a_shared_last_block_is_copied_before_it_is_written",
    ),
    _batch(
        "the convolution's state ends at the padding",
        "last = ends[:, None] + torch.arange(self.width, device=x.device)",
        "last = step.columns + torch.arange(self.width, device=x.device) + 0 * ends[:, None]",
        "test_equality.py::test_any_operations_equal_each_row_alone",
    ),
    _python(
        "the doctor says that a pinned budget is not pinned",
        "if budget and ready < _READY * budget:",
        "if budget and ready >= _READY * budget:",
        "test_doctor_engine.py::test_a_good_engine_has_no_findings",
    ),
    _python(
        "the doctor does not see weights that change",
        "if it.changes_weights and not it.follows_resets:",
        "if it.changes_weights and it.follows_resets:",
        "test_checks.py::test_each_rule_finds_what_it_is_for",
    ),
    _python(
        "a budget for one entry is no finding",
        "it.host_bytes >= 2 * it.entry_bytes",
        "it.host_bytes >= it.entry_bytes",
        "test_checks.py::test_each_rule_finds_what_it_is_for",
    ),
    _python(
        "keys in the place of their file's name are repeated",
        'return "what may be a key and is not repeated" if _LIKE_A_KEY.search(value)',
        'return "what may be a key and is not repeated" if _LIKE_A_KEY.fullmatch(value)',
        "test_encryption.py::test_a_key_in_the_place_of_a_name_is_not_repeated",
    ),
]

RUST = [
    _rust(
        "hybrid-pages-vllm",
        "a state that includes an unknown token is stored",
        "if end > request.tokens()? {\n            // The state",
        "if end > request.tokens()? + 1 {\n            // The state",
        "runs::a_state_that_includes_a_token",
    ),
    _rust(
        "hybrid-pages-vllm",
        "a tail has the state of the column before",
        "let column = end.div_ceil(rules.block_tokens / group.per_block) - 1;",
        "let column = (end / (rules.block_tokens / group.per_block)).saturating_sub(1);",
        "runs::a_group_with_smaller_blocks",
    ),
    _rust(
        "hybrid-pages-vllm",
        "a tail reads engine blocks behind its tokens",
        "let id = if is_used { part.id(column) } else { 0 };",
        "let id = part.id(column);",
        "lib::columns",
    ),
    _rust(
        "hybrid-pages-vllm",
        "a state that the next step overwrites is not copied",
        "self.tail(rules, end, rules.tails == Tails::Copied, request)",
        "self.tail(rules, end, false, request)",
        "runs::a_step_leaves_a_tail",
    ),
    _rust(
        "hybrid-pages",
        "a window is whole with a page too few",
        "whole &= *run >= (window",
        "whole &= *run + 1 >= (window",
        "it::cache_hits",
    ),
    _rust(
        "hybrid-pages",
        "a window sees no page more behind a tail",
        "(window + usize::from(tail)).min(block + 1)",
        "window.min(block + 1)",
        "it::tails",
        "it::cache_model",
    ),
    _rust(
        "hybrid-pages",
        "a tail hangs from any block",
        "stem != PrefixKey::stem_of(before.last())",
        "stem != PrefixKey::stem_of(before.last()) && before.len() > 2",
        "it::tails",
    ),
    _rust(
        "hybrid-pages",
        "a follower hears of tails",
        "!index.is_tail(node)\n            && self.marks",
        "!index.is_retired(node)\n            && self.marks",
        "it::tails",
        "it::announced",
    ),
    _rust(
        "hybrid-pages",
        "what is retained is superseded",
        "if kept.is_none_or(|kept| kept.until <= self.now) {\n            self.policy.supersede",
        "if kept.is_none_or(|kept| kept.until > 0) {\n            self.policy.supersede",
        "it::policies::what_is_retained",
    ),
    _rust(
        "hybrid-pages",
        "a checkpoint goes first although other prefixes go on there",
        "if state.index.children(node).nth(1).is_none() {",
        "if state.index.children(node).nth(3).is_none() {",
        "it::tails",
    ),
    _rust(
        "hybrid-pages",
        "an end that two requests went on from is superseded",
        "!state.visits.forks_at_tail(name)",
        "!state.visits.forks_at_tail(!name)",
        "it::tails",
    ),
    _rust(
        "hybrid-pages-disk",
        "a disk does not know the tails that an earlier process left",
        "let known = false;\n            contents.tails.add(&name);",
        "let known = false;",
        "it::disk::",
    ),
    _rust(
        "hybrid-pages",
        "a copy of the first entry is not compared with its checksum",
        "            if found != expected {\n                return Err(format!(\n"
        '                    "checksum of entry',
        "            if found != expected && entry > 0 {\n                return Err(format!(\n"
        '                    "checksum of entry',
        "it::transfer::",
    ),
    _rust(
        "hybrid-pages",
        "one token too many of a page is stored",
        "(Some(tokens), Some(parts)) => tokens::real(parts, tokens),",
        "(Some(tokens), Some(parts)) => tokens::real(parts, tokens + 1),",
        "it::transfer_parts",
        "it::transfer_model",
    ),
    _rust(
        "hybrid-pages-vllm",
        "a page is copied from blocks that there are not",
        "(id != 0 || !is_part).then_some(id)",
        "Some(id).filter(|_| id != 0 || is_part)",
        "lib::entries",
    ),
    _rust(
        "hybrid-pages",
        "what a read lease pinned stays pinned",
        "self.locked.unpin(std::mem::take(&mut self.read.pinned));",
        "drop(std::mem::take(&mut self.read.pinned));",
        "it::cache_ends",
        "it::cache_writes",
    ),
    _rust(
        "hybrid-pages-cuda",
        "what a neighbour has pinned in part is taken for pinned",
        "(Ok(first), Ok(end)) => end.wrapping_sub(first) == last as u64,",
        "(Ok(_), _) => true,",
        "it::cuda_pinning::what_others_have_pinned_counts_only_as_a_whole",
    ),
    _rust(
        "hybrid-pages-cuda",
        "a kernel reaches for slots that are not pinned",
        "            || slots.iter().all(|slot| state.is_pinned(slot.0 as usize))",
        "            || slots.iter().any(|slot| state.is_pinned(slot.0 as usize))",
        "it::cuda_pinning::what_cannot_be_pinned_costs_its_own_slots_alone",
    ),
    _rust(
        "hybrid-pages-cuda",
        "what lies behind the tokens of a page stays in the slots",
        "if direction == Direction::Store && payload.is_partial() {",
        "if direction == Direction::Store && payload.tiles == 0 {",
        "it::cuda_model",
    ),
    _rust(
        "hybrid-pages-cuda",
        "runs with zeros in between are one piece",
        "            && a.position + u64::from(a.run) == b.position\n",
        "",
        "lib::payload",
        "it::cuda_model",
    ),
    _rust(
        "hybrid-pages-cuda",
        "copies do not wait for what the device was given before",
        "after: after.map(|submitted| submitted.after.event()).collect(),",
        "after: after.map(|submitted| submitted.after.event()).take(0).collect(),",
        "it::cuda_order",
    ),
    _rust(
        "hybrid-pages-disk",
        "wrong bytes of the disk are accepted",
        "let wrong = job.found_sums(shape) != job.sums[..];",
        "let wrong = job.found_sums(shape).len() != job.sums.len();",
        "it::damage",
    ),
    _rust(
        "hybrid-pages-disk",
        "an entry is looked for in its neighbour's cell",
        "            cell,\n            used: minute(",
        "            cell: cell ^ 1,\n            used: minute(",
        "it::disk::",
    ),
    _rust(
        "hybrid-pages-disk",
        "a write that began before a clear is published behind it",
        "        if job.store.epoch != book.epoch {\n            return;",
        "        if job.store.epoch > book.epoch {\n            return;",
        "it::places",
    ),
    _rust(
        "hybrid-pages",
        "what others share is given up with a prefix",
        "if !others.iter().all(|child| ends.contains(&key(child))) {",
        "if !others.iter().all(|child| ends.contains(&key(child)) || block < keys.len()) {",
        "it::cache_hints::what_others_share_is_not_given_up",
        "it::cache_hints::what_another_goes_on_from_by_a_tail_is_not_given_up",
    ),
    _rust(
        "hybrid-pages",
        "a store holds what others have stored anew without the pages before it",
        "            store.hole |= there != store.page(from - 1);",
        "            store.hole |= there.is_none() && store.page(from - 1).is_none();",
        "lib::a_long_store_holds_nothing_behind_pages_that_were_stored_anew",
    ),
    _rust(
        "hybrid-pages",
        "a promotion goes on behind a page that has left the host",
        "                && page.is_none_or(is_in_host)\n",
        "                && page.is_none_or(|page| is_in_host(page) || true)\n",
        "it::cache_portions::whatever_others_do_between_portions_nothing_is_lost_or_held",
    ),
    _rust(
        "hybrid-pages",
        "a checkpoint that is offered alone pushes out the page before it",
        "            self.support(deepest)\n        }\n",
        "            None\n        }\n",
        "it::tiers::a_tier_without_room_for_a_checkpoint_keeps_the_page_that_it_hangs_from",
    ),
    _rust(
        "hybrid-pages",
        "what is expected is retained from when the last request came",
        "state.tiers.room_mut(HOST).policy().pass_time(now);",
        "let _ = HOST;",
        "it::cache_hints::what_is_expected_is_retained_from_now_on",
    ),
    _rust(
        "hybrid-pages",
        "an entry is found at a boundary that has left to make room for it",
        "            .filter(|&node| self.index.knows(node))\n",
        "",
        "it::tiers_unread::a_boundary_that_made_room_for_its_own_entry_is_made_known_anew",
    ),
    _rust(
        "hybrid-pages",
        "what left a tier with a page is not looked for when the page is found again",
        "                if self.index.roles().attention == Some(class) {\n",
        "                if self.index.roles().attention == Some(class) && false {\n",
        "it::tiers_unread::what_left_a_tier_with_a_page_is_found_with_it_again",
    ),
    _rust(
        "hybrid-pages",
        "a portion of a prefix is held without what is before it",
        "        self.add_prefix(&mut pinned, top, block);\n",
        "        let _ = (top, block);\n",
        "it::tiers_unread::a_prefix_that_goes_to_a_tier_is_held_from_its_start",
    ),
    _rust(
        "hybrid-pages",
        "a restore reads what another restore has pinned",
        "        own.find(|pin| self.restoring.pins.lasts(pin)).copied()\n",
        "        own.next()?;\n"
        "        let tier = self.entries.get(id).places.tiers().find(|&tier| tier != HOST)?;\n"
        "        self.restoring.pins.find(id, tier)\n",
        "it::restores::a_restore_reads_from_the_tier_that_it_has_pinned",
    ),
    _rust(
        "hybrid-pages-remote",
        "what a disk read is taken for what was written",
        "            .map(|digests| combine(digests.iter().copied(), shape.shard_bytes))",
        "            .map(|digests| combine(digests.iter().copied(), shape.shard_bytes))\n"
        "            .zip(self.sums.iter())\n            .map(|(_, &told)| told)",
        "it::restores",
    ),
    _rust(
        "hybrid-pages-remote",
        "some packs that are reported as written are gone",
        "        return put.await.map(|_| None);",
        "        let put = put.await.map(|_| None);\n        if id.made % 4 == 0 {\n"
        "            drop(place.store.delete(path).await);\n        }\n        return put;",
        "it::restores",
    ),
    _rust(
        "hybrid-pages-remote",
        "the table of another pack is accepted",
        "        if id != name.id {",
        "        if id != name.id && told.is_empty() {",
        "it::faults::packs_whose_names_were_swapped_are_refused",
    ),
    _rust(
        "hybrid-pages-remote",
        "a table of another identity is accepted",
        "if told[16..48] != *identity || half(12) as usize != ranks {",
        "if half(12) as usize != ranks {",
        "lib::a_table_of_another_pack_identity_or_length_is_refused",
    ),
    _rust(
        "hybrid-pages-remote",
        "wrong bytes of a pack are accepted",
        "            if part.sums.get(rank) != Some(&combine(digests.into_iter(), shard)) {",
        "            if part.sums.get(rank).is_none() {",
        "it::hostile",
        "it::faults",
    ),
    _rust(
        "hybrid-pages-remote",
        "encrypted bytes are not bound to their pack",
        "            place: [IN_A_PACK, id.made, id.writer, u64::from(id.number)],",
        "            place: [IN_A_PACK, 0, 0, u64::from(id.number)],",
        "it::encrypted",
    ),
    _rust(
        "hybrid-pages-disk",
        "a disk whose entries have another key is taken",
        "if lines.iter().all(|line| line == own) => {",
        "if lines.iter().all(|line| line.format == own.format) => {",
        "it::encrypted",
    ),
    _rust(
        "hybrid-pages-disk",
        "a disk takes a key file that gained or lost its lines `tenants`",
        "        self.key == own.key && self.format == own.format && self.tenants.is_none()\n",
        "        self.key == own.key && self.format == own.format\n",
        "it::encrypted",
    ),
    _rust(
        "hybrid-pages-tiers",
        "encrypted bytes are not bound to their entry",
        "        bound[36..68].copy_from_slice(&self.name);",
        "        bound[36..68].copy_from_slice(at.identity);",
        "lib::tiles_open_where_they_were_sealed_and_nowhere_else",
    ),
    _rust(
        "hybrid-pages-tiers",
        "the key of a destroyed tenant can be made again",
        "            beside.push(self.child(!bit));",
        "            beside.extend([self, self.child(!bit)]);",
        "lib::every_leaf_but_the_one_that_was_taken_still_grows",
    ),
    _rust(
        "hybrid-pages-remote",
        "encrypted packs are not bound to their store",
        ".identity(identity, &shared.options.place.name);",
        '.identity(identity, "");',
        "it::encrypted",
    ),
]

FAULTS = [*CONNECTOR, *PACKAGE, *RUST, *GROWING]
