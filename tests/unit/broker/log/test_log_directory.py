from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from logbus_broker.cluster.local_files import META
from logbus_broker.errors import StartupError, StorageError
from logbus_broker.filesystem import PARTITION_METADATA, FileSystem
from logbus_broker.log.checkpoint import VISIBLE_OFFSETS
from logbus_broker.log.log_directory import CLEAN_MARKER, LogDirectory

from tests.sim.disk import SimDisk
from tests.support.batches import plain_batch
from tests.support.logs import FailingDisk, append, append_each, flush, open_log, truncate

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def opened(
    path: Path, *, broker_id: int = 0, cluster_id: str | None = None, filesystem: FileSystem | None = None, **cluster: Any
) -> LogDirectory:
    return LogDirectory.open(
        path, broker_id=broker_id, cluster_id=cluster_id, filesystem=filesystem or FileSystem(), new_id=uuid4, **cluster
    )


def test_a_new_directory_is_made_for_the_owner_alone_and_keeps_its_cluster(tmp_path: Path) -> None:
    directory = opened(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert len(directory.cluster_id) == 22, "Kafka's form of a UUID"
    assert not directory.was_clean
    directory.close()
    assert opened(tmp_path / "data").cluster_id == directory.cluster_id


def test_a_power_cut_does_not_take_a_new_directory_away(tmp_path: Path) -> None:
    """Everything in it was flushed; its own name and those of its new parents have to be flushed too."""
    disk = SimDisk()
    path = disk.root / "var" / "lib" / "data"
    directory = opened(path, filesystem=disk)
    directory.make_partition("t", 0, TOPIC_ID)
    directory.sync()
    disk.power_cut(lambda least, most: least)
    again = opened(path, filesystem=disk)
    assert again.cluster_id == directory.cluster_id
    assert [stored[:2] for stored in again.partitions()] == [("t", 0)]


def test_a_directory_whose_first_start_was_cut_off_is_made_sure_of_by_the_next(tmp_path: Path) -> None:
    disk = SimDisk()
    path = disk.root / "data"
    disk.make_directory(path)
    directory = opened(path, filesystem=disk)
    disk.power_cut(lambda least, most: least)
    assert opened(path, filesystem=disk).cluster_id == directory.cluster_id


def test_a_given_cluster_id_is_taken(tmp_path: Path) -> None:
    assert opened(tmp_path, cluster_id="ours").cluster_id == "ours"
    assert (tmp_path / META).read_text() == "cluster.id=ours\nversion=0\nbroker.id=0\n"


def test_a_second_broker_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(
        StartupError, match=rf"another broker \(pid {os.getpid()}\) uses the data directory .*: stop it, or set log.dirs"
    ):
        opened(tmp_path)
    first.close()
    assert opened(tmp_path)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ("cluster.id=c\nversion=0\nbroker.id=1\n", "belongs to broker 1, this is broker 0: set broker.id or log.dirs"),
        ("cluster.id=c\nversion=1\nbroker.id=0\n", "format version 1, this broker reads 0: use the broker that wrote it"),
        ("cluster.id=other\nversion=0\nbroker.id=0\n", "belongs to cluster other, this is cluster c"),
        ("version=0\nbroker.id=0\n", "has no cluster.id"),
        ("", "meta.properties has no version: restore it from a copy"),
        ("version=0\n", "meta.properties has no broker.id"),
    ],
)
def test_the_directory_of_another_is_refused_and_left_as_it_is(tmp_path: Path, meta: str, text: str) -> None:
    (tmp_path / META).write_text(meta)
    (tmp_path / CLEAN_MARKER).touch()
    with pytest.raises(StartupError, match=text):
        opened(tmp_path, cluster_id="c")
    assert (tmp_path / META).read_text() == meta
    assert (tmp_path / CLEAN_MARKER).exists()


def test_meta_properties_as_apache_kafka_writes_them_are_read(tmp_path: Path) -> None:
    (tmp_path / META).write_text("#\n#Sat Nov 21 11:00:00 UTC 2026\ncluster.id=abc\nversion=0\nbroker.id=0\n")
    assert opened(tmp_path).cluster_id == "abc"


def test_meta_properties_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / META).write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match="not text"):
        opened(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"cannot use the data directory .*file.*set log.dirs to another"):
        opened(tmp_path / "file")


def test_a_clean_stop_is_believed_once(tmp_path: Path) -> None:
    opened(tmp_path).close(clean=True)
    directory = opened(tmp_path)
    assert directory.was_clean
    assert not (tmp_path / CLEAN_MARKER).exists(), "a crash from now on is seen as one"
    directory.close(clean=False)
    assert not opened(tmp_path).was_clean


def test_partitions_are_what_has_the_name_of_one_and_nothing_else_is_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = opened(tmp_path)
    for name, partition in [("b", 0), ("a-1", 12), ("a.b_c", 3)]:
        directory.make_partition(name, partition, TOPIC_ID)
    directory.close()
    foreign = {"lost+found", "backup-to-delete", "a-00", "a-٣", "a-0.1-delete", f"notes.{'0' * 32}-delete", "a-2147483648"}
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "notes-delete").touch()
    (tmp_path / "file-1").touch()
    directory = opened(tmp_path)
    assert f"ignoring what is not the broker's: {', '.join(sorted(foreign))}" in caplog.text
    assert all((tmp_path / name / "file").exists() for name in foreign)
    assert (tmp_path / "notes-delete").exists()
    assert directory.partitions() == [
        ("a-1", 12, tmp_path / "a-1-12"),
        ("a.b_c", 3, tmp_path / "a.b_c-3"),
        ("b", 0, tmp_path / "b-0"),
    ]


def test_partition_metadata_has_the_text_that_apache_kafka_writes(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    path = directory.make_partition("t", 0, TOPIC_ID)
    assert (path / PARTITION_METADATA).read_text() == "version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n"
    assert directory.topic_id("t", 0) == TOPIC_ID


@pytest.mark.parametrize("text", ["", "version: 0\n", "version: 0\ntopic_id: short\n", "topic_id: \xff"])
def test_partition_metadata_that_say_nothing_give_no_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    directory = opened(tmp_path)
    path = directory.make_partition("t", 0, TOPIC_ID)
    (path / PARTITION_METADATA).write_bytes(text.encode("latin-1"))
    assert directory.topic_id("t", 0) is None
    assert directory.topic_id("absent", 0) is None
    assert caplog.messages == [f"{path / PARTITION_METADATA} has no topic id: assuming topic t"]


def test_a_deleted_partition_is_out_of_the_way_at_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    path = directory.make_partition("t" * 249, 7, TOPIC_ID)
    (path / "00000000000000000000.log").write_bytes(b"x")
    doomed = directory.discard_partition("t" * 249, 7)
    assert directory.partitions() == []
    assert doomed.exists()
    directory.make_partition("t" * 249, 7, TOPIC_ID)
    assert len(directory.partitions()) == 1
    directory.close()
    opened(tmp_path)
    assert not doomed.exists(), "what nobody removed goes with the next start"


def test_checkpoints_say_where_recovery_and_reading_begin(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = open_log(directory.make_partition("t", 0, TOPIC_ID), segment_bytes=100)
    append_each(log, 5)
    flush(log)
    append(log, plain_batch())
    log.delete_before(3)
    directory.checkpoint_job({("t", 0): log})()
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert directory.checkpoints.recovery_point("t", 0) == 5, "what is not flushed is not promised"
    assert directory.checkpoints.log_start_offset("t", 0) == 3
    assert directory.checkpoints.recovery_point("t", 1) == directory.checkpoints.log_start_offset("t", 1) == 0


def test_what_is_visible_is_written_down_in_a_cluster_only(tmp_path: Path) -> None:
    for name, is_clustered in (("alone", False), ("member", True)):
        directory = opened(tmp_path / name, in_cluster=is_clustered)
        log = open_log(directory.make_partition("t", 0, TOPIC_ID))
        append(log, plain_batch(9))
        flush(log)
        directory.checkpoint_job({("t", 0): log}, {("t", 0): 7})()
        log.close()
        directory.close(clean=False)
    assert not (tmp_path / "alone" / VISIBLE_OFFSETS).exists()
    assert (tmp_path / "member" / VISIBLE_OFFSETS).read_text() == "0\n1\nt 0 7\n"
    directory = opened(tmp_path / "member", in_cluster=True)
    assert (directory.checkpoints.visible_offset("t", 0), directory.checkpoints.visible_offset("t", 1)) == (7, 0)
    directory.checkpoints.forget([("t", 0)])
    assert directory.checkpoints.visible_offset("t", 0) == 0


def test_a_cut_lowers_how_far_a_log_is_compacted_and_visible(tmp_path: Path) -> None:
    directory = opened(tmp_path, in_cluster=True)
    log = open_log(directory.make_partition("t", 0, TOPIC_ID), is_replica=True)
    append_each(log, 9)
    flush(log)
    directory.checkpoints.note_cleaned_offset("t", 0, 8)
    directory.checkpoints.cleaned_offsets_job()()
    directory.checkpoint_job({("t", 0): log}, {("t", 0): 9})()
    directory.checkpoints.note_cut("t", 0, 8)
    assert (directory.checkpoints.cleaned_offset("t", 0), directory.checkpoints.visible_offset("t", 0)) == (8, 8)
    directory.checkpoints.note_cut("t", 0, 5)
    directory.checkpoints.note_cut("t", 0, 6)
    assert (directory.checkpoints.cleaned_offset("t", 0), directory.checkpoints.visible_offset("t", 0)) == (5, 5)
    truncate(log, 5)
    directory.checkpoint_job({("t", 0): log}, {("t", 0): 5})()
    assert not list(log.directory.glob("*.cut"))
    directory.close(clean=False)
    directory = opened(tmp_path, in_cluster=True)
    assert directory.checkpoints.cleaned_offset("t", 0) == 5, "no mark says so any more"


def test_a_topic_made_again_inherits_no_checkpoint(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = open_log(directory.make_partition("t", 0, TOPIC_ID))
    append(log, plain_batch(9))
    log.close()
    directory.checkpoint_job({("t", 0): log})()
    directory.discard_partition("t", 0)
    forgotten = directory.checkpoints.forget([("t", 0)])
    assert forgotten is not None
    forgotten()
    directory.make_partition("t", 0, TOPIC_ID)
    assert directory.checkpoints.forget([("t", 0)]) is None, "there is nothing more to forget"
    directory.close(clean=False)
    assert opened(tmp_path).checkpoints.recovery_point("t", 0) == 0


@pytest.mark.parametrize("failing", ["write_bytes", "sync_directory"])
def test_a_full_disk_is_a_storage_error_and_keeps_the_old_files(tmp_path: Path, failing: str) -> None:
    disk = FailingDisk()
    directory = opened(tmp_path, filesystem=disk)
    directory.write_json_atomic("topics.json", {"a": 1})
    disk.failing = {failing}
    with pytest.raises(StorageError, match="cannot create|cannot flush"):
        directory.make_partition("t", 0, TOPIC_ID) if failing == "write_bytes" else directory.sync()
    with pytest.raises(StorageError, match="cannot write .*recovery-point-offset-checkpoint"):
        directory.checkpoint_job({})()
    directory.checkpoints.note_cleaned_offset("t", 0, 7)
    with pytest.raises(StorageError, match="cannot write .*cleaner-offset-checkpoint"):
        directory.checkpoints.cleaned_offsets_job()()
    with pytest.raises(StorageError, match="cannot mark"):
        directory.close(clean=True)
    if failing == "write_bytes":
        with pytest.raises(StorageError, match="cannot write"):
            directory.write_json_atomic("topics.json", {"a": 2})
        assert directory.read_json("topics.json") == {"a": 1}


@pytest.mark.parametrize("text", ["{", "", "\0\0\0\0", "null"])
def test_json_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    directory = opened(tmp_path)
    (tmp_path / "topics.json").write_text(text)
    with pytest.raises(StartupError, match=r"topics\.json cannot be read: [Ee]xpect.*restore it"):
        directory.read_json("topics.json")


def test_what_was_written_is_there_after_a_clean_stop_or_within_the_same_boot(tmp_path: Path) -> None:
    directory = opened(tmp_path, boot_id="first")
    assert not directory.kept_writes, "nobody knows what was before"
    directory.note_start(7)
    directory.close(clean=False)
    directory = opened(tmp_path, boot_id="first")
    assert directory.kept_writes
    assert not directory.was_clean
    directory.close(clean=False)
    directory = opened(tmp_path, boot_id="second")
    assert not directory.kept_writes
    directory.note_start(7)
    directory.close()
    directory = opened(tmp_path, boot_id="third")
    assert directory.kept_writes, "all was flushed"
    assert directory.last_start == 7


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_that_ended_before_it_was_settled_does_not_vouch_for_the_next(tmp_path: Path, clean: bool) -> None:
    directory = opened(tmp_path, boot_id="first")
    directory.note_start(7)
    directory.close(clean=False)
    opened(tmp_path, boot_id="second").close(clean=clean)
    assert not opened(tmp_path, boot_id="second").kept_writes


def test_a_copy_does_not_vouch_for_what_the_original_has(tmp_path: Path) -> None:
    directory = opened(tmp_path / "original", boot_id="first")
    directory.note_start(7)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    directory.close()
    copy = opened(tmp_path / "copy", boot_id="first")
    assert (copy.last_start, copy.kept_writes) == (-1, False)
    copy.note_start(8)
    copy.close()
    assert opened(tmp_path / "copy", boot_id="first").last_start == 8
    assert opened(tmp_path / "original", boot_id="first").last_start == 7


def test_a_machine_that_does_not_tell_its_boot_vouches_only_for_what_was_stopped_in_good_order(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.note_start(7)
    directory.close()
    directory = opened(tmp_path)
    assert directory.kept_writes
    directory.close(clean=False)
    assert not opened(tmp_path).kept_writes


def test_a_new_directory_of_a_cluster_gets_the_clusters_id_when_it_is_known(tmp_path: Path) -> None:
    directory = opened(tmp_path, in_cluster=True)
    assert (directory.cluster_id, directory.is_in_cluster, len(directory.directory_id)) == ("", True, 22)
    directory.join("ours")
    directory.close()
    again = opened(tmp_path, in_cluster=True)
    assert (again.cluster_id, again.directory_id) == ("ours", directory.directory_id)
    again.join("ours")
    with pytest.raises(StartupError, match="belongs to cluster ours, ZooKeeper's is theirs: set zookeeper.connect or log.dirs"):
        again.join("theirs")


def test_a_directory_of_a_cluster_refuses_to_start_alone_and_the_other_way_round(tmp_path: Path) -> None:
    opened(tmp_path / "many", in_cluster=True).close()
    with pytest.raises(
        StartupError, match="belongs to a broker of a cluster, whose topics are in ZooKeeper: set zookeeper.connect"
    ):
        opened(tmp_path / "many")
    opened(tmp_path / "one").close()
    with pytest.raises(StartupError, match="belongs to a standalone broker, whose topics are not in ZooKeeper"):
        opened(tmp_path / "one", in_cluster=True)


def test_a_stray_partition_is_named_by_an_id_that_is_handed_in(tmp_path: Path) -> None:
    directory = LogDirectory.open(
        tmp_path, broker_id=0, cluster_id="ours", filesystem=FileSystem(), new_id=iter([UUID(int=7)]).__next__
    )
    directory.make_partition("t", 0, TOPIC_ID)
    assert directory.set_aside("t", 0).name == f"t-0.{UUID(int=7).hex}-stray"
