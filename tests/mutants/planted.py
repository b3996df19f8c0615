"""Bugs to plant, one change each, and the test that must find it.

Each replaces a text that stands exactly once in its file, so that none is planted beside the code it was meant for.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """In `file`, below `src/remuda`, `old` becomes `new`, and `test` fails."""

    name: str
    file: str
    old: str
    new: str
    test: str
    pure: bool = False
    """Whether it is in what C does where it could be built, so that the test is to be played in Python alone."""


REAL_DISK: Final = "tests/log/disk/test_real_disk.py::test_l2_l5_a_power_loss_at_every_system_call_loses_nothing"
SIMULATION: Final = "tests/simulation/test_simulation.py::test_no_seed_breaks_the_contract"
STALLS: Final = "tests/faults/test_stalls.py"
DISPLACED: Final = "tests/faults/test_displaced.py"
INTERRUPTS: Final = "tests/faults/test_interrupts.py"
CRASH_ONLY: Final = "tests/broker/test_crash_only.py"
PAIRS: Final = "tests/broker/test_pairs.py"
SHORT_WAY: Final = "tests/faults/test_short_way.py"

MUTANTS: Final = (
    Mutant(
        "an atomic write that does not sync its content",
        "log/disk/directory.py",
        "                    os.fsync(handle)\n",
        "",
        REAL_DISK,
    ),
    Mutant(
        "a rename that does not sync its folder",
        "log/disk/directory.py",
        "            os.replace(self._root / source, path)\n            sync_folder(path.parent)\n",
        "            os.replace(self._root / source, path)\n",
        REAL_DISK,
    ),
    Mutant(
        "a sync that leaves the name of the file behind",
        "log/disk/system.py",
        "                sync_folder(self._path.parent)\n",
        "                pass\n",
        REAL_DISK,
    ),
    Mutant(
        "a failed sync that is tried again as if nothing had happened",
        "log/disk/system.py",
        "            raise unusable(self._path.name, error) from error\n        if not",
        "            raise storage_error(self._path.name, error) from error\n        if not",
        "tests/faults/test_disks.py::test_l7_a_sync_without_room_is_the_end",
    ),
    Mutant(
        "a directory that two processes may lock",
        "log/disk/directory.py",
        "                fcntl.flock(handle, how)\n            except BlockingIOError",
        "                pass\n            except BlockingIOError",
        "tests/faults/test_directories.py::test_l7_the_lock_cannot_be_got_round_by_removing_a_file",
    ),
    Mutant(
        "a frame whose checksum is not looked at",
        "log/tail/tail_frames.py",
        "    if checksum(number, kind, payload) != crc:\n",
        "    if checksum(number, kind, payload) != crc and not payload:\n",
        "tests/log/tail/test_frames.py",
    ),
    Mutant(
        "a new segment that may outlive the one before it",
        "log/tail/writer.py",
        "        self.sync()\n        self._unsynced.clear()\n",
        "        self._unsynced.clear()\n",
        "tests/log/tail/test_log.py::test_l2_a_segment_is_on_the_disk_before_the_next_one_is_begun",
    ),
    Mutant(
        "a batch that is written behind what came after it",
        "log/log.py",
        "        self._pending[:0] = batch.unwritten\n",
        "        self._pending += batch.unwritten\n",
        "tests/log/tail/test_log.py::test_l7_what_could_not_be_written_is_written_later_before_what_came_since",
    ),
    Mutant(
        "a small write that is forgotten when there was no room for it",
        "log/log.py",
        "            self._pending.append(SegmentPart(segment, [data]))\n",
        "",
        f"{STALLS}::test_l7_a_pull_that_cannot_be_kept_puts_back_what_it_took",
        pure=True,
    ),
    Mutant(
        "a checkpoint that stands for records not yet on the disk",
        "broker/embedded/upkeep/background.py",
        "                runtime.sync()\n                self._snapshot_bytes",
        "                self._snapshot_bytes",
        SIMULATION,
    ),
    Mutant(
        "sealing a segment that a restart still needs",
        "log/state/checkpoint.py",
        "        return min((mark.segment for _, mark in self._kept), default=0)\n",
        "        return max((mark.segment for _, mark in self._kept), default=0) + 1\n",
        "tests/log/sealed/test_seal.py::test_only_what_a_restart_does_not_need_is_sealed",
    ),
    Mutant(
        "one bad segment that stops all sealing",
        "log/sealed/seal.py",
        "salvage=segment.failures >= _PATIENCE)",
        "salvage=False)",
        "tests/log/sealed/test_seal.py::test_l3_a_segment_that_cannot_be_read_costs_itself_and_not_the_others",
    ),
    Mutant(
        "a spooled batch that goes before its rows are kept",
        "broker/embedded/upkeep/spool_reader.py",
        "            return\n        runtime.wait(pending.ticket)\n",
        "            return\n",
        "tests/faults/test_spool.py",
    ),
    Mutant(
        "a spooled batch that goes while its rows wait for room",
        "broker/embedded/upkeep/spool_reader.py",
        "            self._runtime.sync()\n",
        "            pass\n",
        "tests/faults/test_spool.py::test_p2_a_batch_stays_while_the_disk_is_full",
    ),
    Mutant(
        "a part of a batch whose checksum is not looked at",
        "log/spool.py",
        '_checksum(path) != int(match["crc"], 16):',
        "_checksum(path) == 0:",
        "tests/log/test_spool.py::test_p2_no_damage_goes_unnoticed",
    ),
    Mutant(
        "marks of an earlier boot that are believed",
        "broker/embedded/delivering/attempts.py",
        'data[:_HEAD].rstrip(b"\\0") != boot:',
        "not data[:_HEAD]:",
        "tests/broker/test_attempts.py",
    ),
    Mutant(
        "a broker that takes more while nothing can be kept",
        "broker/embedded/runtime.py",
        "        return self._owe(command, self._refusal())\n",
        "        return self._carry_out(command, self.clock(), None, True)\n",
        f"{STALLS}::test_l7_a_stalled_publish_is_kept_once_there_is_room",
    ),
    Mutant(
        "a pull that is told None when nothing can come",
        "broker/threads.py",
        "                if found is None:\n                    backend.check_stalled()\n",
        "",
        f"{STALLS}::test_l7_a_waiting_pull_is_told_instead_of_none",
    ),
    Mutant(
        "those who wait are not told of a failed write",
        "broker/embedded/storing/durability.py",
        "        self._group.fail(error)\n        self._recipients.release_all(self._group.stopped())\n",
        "        self._group.fail(error)\n",
        f"{STALLS}::test_l7_an_error_that_does_not_pass_is_the_end_for_everyone",
    ),
    Mutant(
        "what a disk full for a while kept back is let go of",
        "broker/embedded/storing/durability.py",
        "                self.engine.log.take_back(batch)\n                self._outbox[:0] = outbox\n",
        "                self.engine.log.take_back(batch)\n",
        f"{STALLS}::test_l7_subscriptions_outlive_a_stall",
    ),
    Mutant(
        "a limit that is off by one",
        "core/admission.py",
        "        if options.message_limit and self.size >= options.message_limit and not word:\n",
        "        if options.message_limit and self.size > options.message_limit and not word:\n",
        "tests/core/test_admission.py",
    ),
    Mutant(
        "a check that does not look at the end of the log",
        "log/repair/check.py",
        "        for damage in replay.damages:\n",
        "        for damage in ():\n",
        "tests/faults/test_check.py::test_l9_a_tail_that_was_cut_between_two_records_is_told_by_offset",
    ),
    Mutant(
        "a search that does not look again when the index was replaced",
        "index/sqlite/index.py",
        "            if all(self._path(number).exists() for number in builds):\n",
        "            if True:\n",
        "tests/index/test_sqlite.py::test_a_build_that_is_replaced_while_it_is_opened_gives_way_to_the_newer",
    ),
    Mutant(
        "a copy of a segment that hides what the segment itself holds",
        "log/tail/segment_order.py",
        "        if first is not None and first <= reached:\n",
        "        if False:\n",
        f"{DISPLACED}::test_l9_segments_are_known_by_what_they_hold",
    ),
    Mutant(
        "a segment whose name is believed rather than its content",
        "log/tail/segment_order.py",
        "        segment.file, segment.sequence, segment.marker = segment.name, sequence, marker\n",
        "        pass\n",
        f"{DISPLACED}::test_l9_segments_are_known_by_what_they_hold",
    ),
    Mutant(
        "a damaged marker that is believed rather than the name",
        "log/tail/segment_order.py",
        "        if marker != segment.marker and _holds_frames(disk, segment):\n",
        "        if False:\n",
        "tests/log/repair/test_recovery.py::test_l3_a_damaged_marker_hides_its_own_frame_alone",
    ),
    Mutant(
        "a newest segment that nobody misses",
        "log/state/newest_segment.py",
        "    return not any(segment.sequence >=",
        "    return False and not any(segment.sequence >=",
        f"{DISPLACED}::test_l9_a_newest_segment_that_went_away_is_missed",
    ),
    Mutant(
        "a segment that is written to and named nowhere",
        "log/tail/writer.py",
        "        self._newest.note(Newest(segment.sequence, segment.first))\n",
        "        self._newest.reserve()\n",
        "tests/log/repair/test_recovery.py::test_l3_the_newest_segment_cannot_be_lost_without_a_word",
    ),
    Mutant(
        "a tail that is not looked through before the checkpoint",
        "log/repair/scrub.py",
        "deque([*reversed(log.unread), *sealed])",
        "deque(sealed)",
        f"{DISPLACED}::test_l3_damage_before_the_newest_checkpoint_is_reported_too",
    ),
    Mutant(
        "a sealed file that passes for another",
        "log/sealed/sealed_table.py",
        "            if not self._is_own():\n",
        "            if False:\n",
        f"{DISPLACED}::test_l9_a_sealed_file_in_the_place_of_another_is_not_read_as_that",
    ),
    Mutant(
        "a directory that goes away unnoticed",
        "broker/embedded/upkeep/background.py",
        '            self._try_if_due("the check of the directory", self._check_directory)\n',
        "            pass\n",
        f"{DISPLACED}::test_l7_a_directory_that_goes_away_under_its_broker_stops_it_and_everyone_knows",
    ),
    Mutant(
        "files that are collected without a note",
        "log/retention/drop.py",
        "        log.ledger.note_collected(messages, events)\n    except",
        "        pass\n    except",
        "tests/log/state/test_ledger.py::test_l9_a_sealed_file_that_was_removed_is_told_from_one_that_was_collected",
    ),
    Mutant(
        "files that are noted as collected after they went",
        "log/retention/drop.py",
        "        log.ledger.note_collected(messages, events)\n    except",
        "        remove()\n        log.ledger.note_collected(messages, events)\n    except",
        "tests/log/retention/test_collect.py::test_l5_a_crash_at_any_step_of_collecting_keeps_what_must_stay",
    ),
    Mutant(
        "a sealed file that goes away and is not missed",
        "log/log.py",
        "            report.damages += self.ledger.gone(report.damages)\n",
        "            pass\n",
        f"{DISPLACED}::test_l9_a_sealed_file_that_went_away_is_reported_by_number",
    ),
    Mutant(
        "an index that passes for another file's",
        "log/sealed/id_index.py",
        "repr(tuple(place)).encode()",
        'b""',
        f"{DISPLACED}::test_l9_an_index_that_is_not_its_own_hides_no_message",
    ),
    Mutant(
        "a pull that was interrupted and still waits",
        "broker/threads.py",
        "            else:\n                backend.abandon_pull(pending, command, inbox)\n",
        "",
        f"{INTERRUPTS}::test_a_pull_that_was_interrupted_takes_nothing_from_those_who_come_later",
    ),
    Mutant(
        "an interrupted leader that is begun again in vain",
        "broker/embedded/storing/group_commit.py",
        "                except BaseException:  # a signal's handler may raise anything, such as SystemExit",
        "                except KeyboardInterrupt:",
        f"{INTERRUPTS}::test_two_interrupts_at_once_leave_no_leader_behind",
    ),
    Mutant(
        "an interrupt beside the write that nobody is told of",
        "broker/embedded/storing/durability.py",
        "                self.engine.log.abandon(error)\n                self._fail(error)\n            raise\n",
        "                pass\n            raise\n",
        f"{INTERRUPTS}::test_l2_an_interrupt_beside_the_write_itself_is_told_to_everyone_who_waits",
    ),
    Mutant(
        "a half-changed broker that a second interrupt keeps going",
        "broker/embedded/storing/durability.py",
        "        self.engine.log.abandon(error)\n        self._fail(error)\n        _log.error(",
        "        _log.error(",
        f"{INTERRUPTS}::test_l2_a_second_interrupt_does_not_keep_a_broker_from_stopping",
    ),
    Mutant(
        "a copy that drops the part of its tail that it still needs",
        "log/repair/inventory.py",
        "if following is not None and (needed is None or segment.sequence < needed):",
        "if following is not None:",
        "tests/faults/test_check.py::test_l9_a_backup_whose_tail_was_sealed_while_it_was_copied_has_all_that_changed",
    ),
    Mutant(
        "names that a killed process did not sync are taken for kept",
        "log/disk/directory.py",
        "                if folder.is_dir():\n                    sync_folder(folder)\n",
        "                pass\n",
        "tests/log/disk/test_real_disk.py::"
        "test_l2_l5_what_a_killed_process_did_not_sync_is_synced_before_anything_builds_on_it",
    ),
    Mutant(
        "a short way that stays open over a sync, and leaves the next sync nothing to do",
        "log/tail/writer.py",
        "        self._forget_current()\n        while self._unsynced:\n",
        "        while self._unsynced:\n",
        f"{SHORT_WAY}::test_l2_with_sync_always_a_single_message_and_its_answer_are_synced_before_they_count",
    ),
    Mutant(
        "a record that counts before it is synced",
        "broker/embedded/storing/durability.py",
        "                standing = AWAITING_SYNC\n",
        "                pass\n",
        f"{SHORT_WAY}::test_l2_with_sync_always_a_single_message_and_its_answer_are_synced_before_they_count",
    ),
    Mutant(
        "a write to a directory that another process has",
        "broker/embedded/storing/durability.py",
        "            if self.fence is not None and monotonic() > self._fence_until:\n",
        "            if False:\n",
        "tests/broker/test_fence.py::test_s5_nothing_is_written_by_who_lost_the_directory",
    ),
    Mutant(
        "a frame that counts in C when the disk took a part of it",
        "native/tail.c",
        "written(self, (size_t)step.size) != step.size",
        "written(self, (size_t)step.size) < 0",
        f"{SHORT_WAY}::test_l7_a_frame_of_which_the_disk_takes_a_part_does_not_count_until_it_takes_the_rest",
    ),
    Mutant(
        "a record that overtakes in C what is pending",
        "native/tail.c",
        "before != self->byte || make_frame",
        "make_frame",
        "tests/log/tail/test_native.py::test_l2_both_ways_write_the_same",
    ),
    Mutant(
        "a checksum in C that is one byte short",
        "native/tail.c",
        "frame + HEADER, length);",
        "frame + HEADER, length - 1);",
        "tests/log/tail/test_native.py::test_l2_both_ways_write_the_same",
    ),
    Mutant(
        "messages that are looked at for their deadlines before the last of them are in line",
        "core/delivering.py",
        "    if queue.ready.soonest <= now or (queue.delayed.soonest <= now and not newest):\n",
        "    if queue.delayed.soonest <= now and not newest:\n",
        "tests/core/test_delayed.py::"
        "test_q5_a_message_that_expired_while_it_was_due_behind_a_key_that_may_not_go_is_not_delivered",
    ),
    Mutant(
        "a next deadline of messages that have left",
        "core/queues/ready.py",
        "        self._count = self.size = 0\n        self.soonest = NEVER\n",
        "        self._count = self.size = 0\n",
        SIMULATION,
    ),
    Mutant(
        "a plan that outlives the rules it was made from",
        "core/registry.py",
        "        self._plans.clear()\n\n    def plan_for",
        "\n    def plan_for",
        SIMULATION,
    ),
    Mutant(
        "a record in C that counts before all that can fail is done",
        "native/tail.c",
        "    if (frame != NULL && note(self, args[1], step.kind, self->byte) < 0)\n        Py_CLEAR(frame);\n"
        "    if (frame != NULL)\n        go_on(self, &step);\n",
        "    go_on(self, &step);\n    if (frame != NULL && note(self, args[1], step.kind, self->byte) < 0)\n"
        "        Py_CLEAR(frame);\n",
        "tests/log/tail/test_native_errors.py::test_l2_memory_that_runs_out_anywhere_leaves_the_log_as_it_was",
    ),
    Mutant(
        "headers that are still the caller's own",
        "native/columns.c",
        "*headers = PyDict_Copy(values[M_HEADERS]), *batch",
        "*headers = Py_NewRef(values[M_HEADERS]), *batch",
        "tests/model/test_messages.py::test_m2_a_batch_shares_nothing_with_what_it_was_made_of",
    ),
    # Where two features meet.
    Mutant(
        "a pull that an error undoes while it is served, and that is forgotten",
        "core/recovery/reloading.py",
        "for waiter in (*before.stopped, *before.waiters.values()):",
        "for waiter in before.waiters.values():",
        f"{CRASH_ONLY}::test_q16_l10_a_pull_that_was_served_by_what_is_undone_waits_on",
    ),
    Mutant(
        "a pull whose time is up while an error comes, and that nobody ends",
        "core/recovery/reloading.py",
        "    for tag in left.waiting - known:",
        "    for tag in left.waiting & known:",
        f"{CRASH_ONLY}::test_q16_l10_a_pull_ends_whose_time_was_up_when_the_error_came",
    ),
    Mutant(
        "upkeep that keeps the log while the queues are to be rebuilt",
        "broker/embedded/restoring.py",
        "        if self._runtime.upkeep.busy_here or threading.current_thread() is timer.thread:\n",
        "        if threading.current_thread() is timer.thread:\n",
        f"{CRASH_ONLY}::test_l10_an_error_in_the_middle_of_a_checkpoint",
    ),
    Mutant(
        "a takeover that calls a moved message handled",
        "core/publishing.py",
        "        late = any(queue.watches for queue in queues)\n",
        "        late = False\n",
        f"{PAIRS}::test_q4_s5_a_publisher_that_waits_follows_its_message_over_a_takeover",
    ),
    Mutant(
        "a deadline that stays behind when its message moves",
        "core/journey.py",
        "        self.to = to if self._left else None\n",
        "        self.to = None\n",
        f"{PAIRS}::test_q5_a_deadline_goes_with_its_message",
    ),
    Mutant(
        "a router whose turn a restart forgets",
        "core/publishing.py",
        "            if exchange.turn != turn:\n",
        "            if exchange.turn == turn:\n",
        f"{PAIRS}::test_q18_the_turn_of_a_router_outlives_its_broker",
    ),
    Mutant(
        "a rule that is switched on and does not know what waits",
        "core/registry.py",
        "        if asks:\n",
        "        if not asks:\n",
        f"{PAIRS}::test_q12_unique_ids_switched_on_later_knows_what_waits",
    ),
    Mutant(
        "a publisher who is not told what became of a moved message",
        "core/registry.py",
        "                for offset, number in watches.items():\n",
        "                for offset, number in list(watches.items())[:0]:\n",
        f"{PAIRS}::test_q4_a_publisher_that_waits_follows_its_message_to_another_queue",
    ),
    Mutant(
        "a compacter that looks at each copy of a router",
        "core/publishing.py",
        "self._copy_to(binding, originals, verdict)",
        "self._copy_to(binding, originals)",
        f"{PAIRS}::test_q18_the_compacter_looks_at_a_message_once",
    ),
    Mutant(
        "what expired and goes round for ever",
        "core/delivering.py",
        '            stays = queue.arrivals.get(offset, "").endswith(f": {EXPIRED}")\n',
        "            stays = False\n",
        f"{PAIRS}::test_q5_expired_queues_in_a_circle_send_a_message_on_once",
    ),
)

IN_EVERY_TEST_RUN: Final = (
    "a failed sync that is tried again as if nothing had happened",
    "a spooled batch that goes while its rows wait for room",
    "a part of a batch whose checksum is not looked at",
    "a limit that is off by one",
)
