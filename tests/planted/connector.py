"""Faults of the connector that tests with vLLM's scheduler find."""

from __future__ import annotations

from fault import Fault


def _scheduler(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(name, find, replace, "scheduler", tests)


CONNECTOR = [
    _scheduler(
        "blocks that other requests need soon hold copies",
        "return left >= 0",
        "return True",
        "test_copied_states.py::test_a_block_that_others_need_is_not_taken",
    ),
    _scheduler(
        "a state that the next step overwrites is not copied by the worker",
        "rows[target].copy_(rows[source], non_blocking=True)",
        "pass",
        "test_copied_states.py::test_later_steps_do_not_change_what_is_stored",
    ),
    _scheduler(
        "the key of a tail does not name the salt",
        "salt = (request.cache_salt or None) if parent is None else None",
        "salt = None",
        "test_tail_keys.py::test_the_first_block_names_the_salt",
        "test_tails.py::test_salts_adapters_and_images_have_tails_of_their_own",
    ),
    _scheduler(
        "the key of a tail does not name where its images begin",
        'named[place] = named.get(place, b"") + said',
        'named[0] = named.get(0, b"") + said',
        "test_tail_keys.py::test_what_vllm_hashes_apart_has_keys_of_its_own",
    ),
    _scheduler(
        "a warmed beginning is superseded by its first user",
        "if answered and is_first else None",
        "if is_first else None",
        "test_superseded.py::test_what_was_warmed_is_not_superseded",
    ),
    _scheduler(
        "an end that two requests have had is superseded",
        "if answered and is_first else None",
        "if answered else None",
        "test_superseded.py::test_an_end_that_two_requests_have_had_is_not_superseded",
    ),
    _scheduler(
        "a request that was aborted supersedes the turn before",
        "if aborted(tracked.request) or not ends_here:",
        "if not ends_here:",
        "test_superseded.py::test_a_turn_that_was_aborted_supersedes_nothing",
    ),
    _scheduler(
        "a turn of a conversation gets states that nobody goes on from",
        "others = not (parting.continues and full)",
        "others = True",
        "test_superseded.py::test_a_full_host_takes_the_end_of_a_turn_alone",
    ),
    _scheduler(
        "an answer's end is stored where templates drop answers",
        "if tracked.drops and tokens > tracked.request.num_prompt_tokens:",
        "if tracked.drops and tokens < tracked.request.num_prompt_tokens:",
        "test_superseded.py::test_what_a_template_drops_is_left_out_on_the_first_visit",
    ),
    _scheduler(
        "a request that has stops inside blocks alone gets the first one only",
        "if tracked.stops or tracked.ends:",
        "if tracked.stops:",
        "test_tails.py::test_several_steps_end_inside_one_block",
    ),
    _scheduler(
        "a step goes on from inside a block where vLLM keeps wrong states",
        "return end if known > end + size else 0",
        "return 0",
        "test_tails.py::test_no_step_ends_where_vllm_goes_on_with_wrong_states",
    ),
    _scheduler(
        "a step ends inside a block where the scheduler cuts",
        "versions.end_step_at(tracked.request, stop, inside=exact)",
        "versions.end_step_at(tracked.request, stop)",
        "test_tails.py::test_a_hint_asks_for_a_tail",
    ),
    _scheduler(
        "an engine that has no tails asks for them",
        "if self.inside and can_have_tails(tracked.request):",
        "if can_have_tails(tracked.request):",
        "test_resumed_inside.py::test_only_engines_that_store_tails_ask_for_them",
    ),
    _scheduler(
        "a tail in vLLM's pool is offered when it was evicted",
        "if kept.is_there:\n                    self._note_use",
        "if True:\n                    self._note_use",
        "test_engine_tails.py::test_vllm_evicts_it_like_a_block_of_its_own",
    ),
    _scheduler(
        "a tail in vLLM's pool outlives a reset",
        "self.engine_tails.clear()",
        "pass",
        "test_engine_tails.py::test_after_a_reset_nothing_of_it_is_found",
    ),
    _scheduler(
        "the keys of a page for CPUs have a row for each token",
        "[([(width, 0), (tokens, 1)], item), ([(tokens, 1)], width * item)]",
        "[([(tokens, 1), (width, 0)], item), ([(tokens, 1)], width * item)]",
        "test_page_tokens.py::test_the_cpus_kernels_place_tokens_as_the_parts_say",
    ),
    _scheduler(
        "a load takes the last token, too, so that nothing is left to compute",
        "self.restores.look_up(tracked, hit, request.num_tokens - 1)",
        "self.restores.look_up(tracked, hit, request.num_tokens)",
        "test_states.py::test_the_second_send_restores_every_full_block_before_the_last_token",
    ),
    _scheduler(
        "a load ends a block early",
        "limit=place.whole,\n            tail=place.tail,\n        )",
        "limit=place.whole - 1,\n            tail=place.tail,\n        )",
        "test_boundaries.py::"
        "test_a_resent_prompt_is_restored_up_to_its_last_boundary_or_where_vllm_keeps_a_state",
    ),
    _scheduler(
        "what a failed load brought stays in the cache",
        "            self.cache.invalidate(load.lease)",
        "            pass",
        "test_checksums.py::test_a_flipped_bit_is_found_and_the_request_recomputed",
        "test_faulty_copies.py::test_spoilt_bytes_are_refused_when_verified",
    ),
    _scheduler(
        "a load that has ended counts as one that holds blocks",
        "self._admitted.pop(request_id, None)",
        "pass",
        "test_small_pools.py::test_a_load_waits_for_those_that_hold_its_blocks_and_is_not_lost",
        "test_small_pools.py::test_a_load_that_is_left_out_counts_once",
    ),
    _scheduler(
        "a request that is cancelled before its turn keeps its namespace",
        "self.connection.namespaces.release(early.run.namespace)",
        "pass",
        "test_early.py::test_one_that_is_cancelled_gives_everything_back",
    ),
    _scheduler(
        "requests that wait keep their room from those whose turn has come",
        "            restores.crowded = False\n            self.give_back()\n",
        "            restores.crowded = False\n",
        "test_early.py::test_all_is_given_back_when_another_request_finds_no_room",
    ),
    _scheduler(
        "what was there before a session is given up with it",
        "return min(self._shared.pop(session, known), known)",
        "return min(self._shared.pop(session, known), 0)",
        "test_outlook.py::test_what_was_there_before_the_session_is_left_alone",
    ),
    _scheduler(
        "a load waits for ever for a wave that does not come",
        "return now < load.since + self.restores.wait_seconds",
        "return True",
        "test_waves.py::test_a_wave_that_never_comes_costs_a_recompute",
    ),
    _scheduler(
        "every rank compares with the checksums of rank 0",
        "return checksums[self.rank]",
        "return checksums[0]",
        "test_faulty_copies.py::test_spoilt_bytes_are_refused_when_verified",
        "test_checksums.py::test_every_mode_restores",
    ),
    _scheduler(
        "a wrong checksum is accepted",
        'if self.settings.checksum != "verify":',
        'if self.settings.checksum != "never":',
        "test_faulty_copies.py::test_spoilt_bytes_are_refused_when_verified",
    ),
    _scheduler(
        "a page that draft layers wrote is found under another next token",
        "hashlib.blake2b(engine_key + token, digest_size=32)",
        "hashlib.blake2b(engine_key, digest_size=32)",
        "test_draft_pages.py::test_a_block_is_not_stored_under_a_token_that_came_later",
        "test_speculation.py::test_a_block_is_restored_before_the_token_that_its_draft_layers_have_read",
    ),
    _scheduler(
        "a block is stored under a next token that is not there yet",
        "return min(blocks, (request.num_tokens - 1) // self.grid.block_tokens)",
        "return min(blocks, request.num_tokens // self.grid.block_tokens)",
        "test_speculation.py::test_a_block_is_restored_before_the_token_that_its_draft_layers_have_read",
        "test_speculation.py::test_the_second_send_restores_all_that_the_first_one_left_a_state_for",
    ),
    _scheduler(
        "what was computed from an invalid block is followed a block too late",
        "for block in ids[first // n :] if block",
        "for block in ids[first // n + 1 :] if block",
        "test_block_sizes.py::test_invalid_blocks_spread_by_tokens",
    ),
    _scheduler(
        "a window has one engine block too few",
        "unseen = max(0, n - window + 1) // tokens",
        "unseen = max(0, n - window + 1) // tokens + 1",
        "test_block_sizes.py::test_a_window_is_loaded_as_far_as_it_reaches",
        "test_block_sizes.py::test_a_window_narrower_than_a_block_is_stored_while_an_answer_passes_it",
    ),
    _scheduler(
        "a request that ran through a reset goes on to publish",
        "            if request.num_computed_tokens or request.request_id in in_flight:\n"
        "                self.distrust(tracked)",
        "            if request.request_id in in_flight:\n                self.distrust(tracked)",
        "test_resets.py::test_a_request_that_runs_through_a_reset_publishes_nothing",
    ),
    _scheduler(
        "what vLLM's own cache holds is trusted after a reset",
        "            self._old.keys |= self._keys_in_engine()",
        "            pass",
        "test_resets.py::test_what_vllm_still_holds_from_before_a_reset_is_not_published",
    ),
    _scheduler(
        "a load is admitted whatever others hold",
        "free -= versions.blocks_to_finish(manager, each.request, computed, self._ahead)",
        "free -= 0",
        "test_small_pools.py::test_a_load_waits_for_those_that_hold_its_blocks_and_is_not_lost",
        "test_small_pools.py::test_a_load_that_is_left_out_counts_once",
    ),
    _scheduler(
        "a checkpoint is asked for a block behind the fork",
        "                stops.add(admission.fork)",
        "                stops.add(admission.fork + 1)",
        "test_checkpoints.py::test_the_second_visitor_makes_the_state_that_the_third_one_gets",
        "test_checkpoints.py::test_a_fork_is_known_from_keys_when_its_pages_were_evicted",
    ),
    _scheduler(
        "held stores do not wait for the step that they belong to",
        "        if step.loads or self._held:\n",
        "        if step.loads:\n",
        "test_device.py::test_copies_wait_for_what_comes_before_the_forward_pass",
    ),
    _scheduler(
        "stores that are held are lost when the engine sleeps",
        "            self._start_held()\n            self.engine.close()\n",
        "            self.engine.close()\n",
        "test_device.py::test_stores_are_held_for_the_next_step_and_not_longer",
    ),
    _scheduler(
        "a reset does not wait for stores",
        "self._end_stores(wait=True)\n        for name in",
        "self._end_stores(wait=False)\n        for name in",
        "test_resets.py::test_an_idle_engine_in_one_process_can_be_reset",
    ),
    _scheduler(
        "a reset leaves requests the blocks that were loaded",
        "for name in self.connection.unused():",
        "for name in ():",
        "test_resets.py::test_a_request_that_was_loaded_and_has_not_run_is_computed_anew_after_a_reset",
    ),
    _scheduler(
        "a reset takes what was loaded from a request while others hold blocks",
        "return names if versions.used_blocks(self.pool) == len(held) else ()",
        "return names",
        "test_resets.py::test_a_reset_that_vllm_refuses_leaves_what_was_loaded_alone",
    ),
    _scheduler(
        "a paused engine leaves a load under way",
        "return self.storing or (connection.connected and bool(connection.loads.in_flight))",
        "return self.storing",
        "test_resets.py::test_a_pause_that_keeps_requests_resets_everything_while_one_is_being_loaded",
    ),
    _scheduler(
        "a request begins with pages beyond the state that is loaded",
        "return max(joint, min(deepest, end - 1) // n * n)",
        "return max(joint, deepest // n * n)",
        "test_states_alone.py::test_a_state_at_the_end_of_the_pages_is_loaded_with_the_last_of_them",
    ),
    _scheduler(
        "loaded bytes are not counted",
        '            self.figures.count("loaded_bytes", planned, kind)\n',
        "            pass\n",
        "test_block_sizes.py::test_only_the_parts_that_are_loaded_are_counted",
    ),
    _scheduler(
        "hits of a preempted request count again",
        'hits = "preempted_hit_tokens" if tracked.counted else "hit_tokens"',
        'hits = "hit_tokens"',
        "test_counts.py::test_a_preempted_request_counts_once",
    ),
    _scheduler(
        "drafts are not refused with pipeline stages",
        "            stages != 1,\n",
        "            False,\n",
        "test_refusals.py::test_pipeline_stages_are_refused_with_drafts_alone",
    ),
    _scheduler(
        "the layers of a stage change places",
        "free[layer.bytes].pop(0)",
        "free[layer.bytes].pop()",
        "test_stages.py::test_every_split_restores_what_all_stages_have_stored",
    ),
    _scheduler(
        "a pipeline split is no part of the identity",
        'identity["stages"] = f"{split} layers by group, {digest[:32]}"',
        'identity["stages"] = split',
        "test_stages.py::test_other_splits_are_other_entries",
    ),
    _scheduler(
        "any number of drafts is accepted",
        "not drafts or not 1 <= drafts <= MOST_DRAFTS",
        "not drafts or drafts < 1",
        "test_refusals.py::test_a_configuration_not_shown_to_work_is_refused",
    ),
    _scheduler(
        "a rank whose layout differs from rank 0's is accepted",
        "if difference := found[first].difference(geometry):",
        "if difference := geometry.difference(geometry):",
        "test_refusals.py::test_ranks_whose_tensors_differ_are_refused",
    ),
    _scheduler(
        "a store that the scheduler ended ahead counts as unknown",
        "            self._ahead.discard(job)\n            return\n",
        "            self._ahead.discard(job)\n",
        "test_resets.py::test_an_idle_engine_in_one_process_can_be_reset_behind_drafts",
    ),
    _scheduler(
        "a rank waits for its loads while others wait for it",
        "self._waits = config.parallel_config.data_parallel_size == 1",
        "self._waits = config.parallel_config.data_parallel_size >= 1",
        "test_data_parallel.py::test_no_step_waits_for_a_load_that_other_ranks_would_wait_for_too",
    ),
    _scheduler(
        "weights of a LoRA that were loaded again in place share the earlier ones' namespace",
        "json.dumps([*names, generation] if generation else names)",
        "json.dumps(names)",
        "test_resets.py::test_an_adapter_reloaded_in_place_starts_a_new_namespace",
    ),
]
