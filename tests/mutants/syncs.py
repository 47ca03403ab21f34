"""Each call that makes something durable, removed. The tests are of `tests.powercut`."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, without

_EMBEDDED: Final = "tests/powercut/test_embedded.py"
_AGENT: Final = "tests/powercut/test_agent.py"
_STORE: Final = "tests/powercut/test_store.py"
_CLUSTER: Final = "tests/powercut/test_cluster.py"
_TOPICS: Final = "tests/powercut/test_topics.py"
_TOPICS_JOURNAL: Final = "holdfast/topics/broker/disk/journal.py"
_LOG: Final = "holdfast/coordination/embedded/log.py"
_APPENDER: Final = "holdfast/coordination/embedded/appender.py"
_FILES: Final = "holdfast/coordination/embedded/folder.py"
_SNAPSHOT: Final = "holdfast/coordination/embedded/snapshot.py"
_JOURNAL: Final = "holdfast/agent/journal.py"
_SHIM: Final = "holdfast/agent/shim.py"
_FOLDER: Final = "holdfast/storage/folder.py"
_DISK: Final = "holdfast/system/disk.py"
_DURABLE: Final = "holdfast/system/durable.py"

# Files with a sync that keeps nothing safe, and why.
NEEDLESS: Final = {
    "holdfast/cli/doctor.py": "measures how long one takes",
}

_SERVER: Final = (
    without(
        "server-batch-not-synced",
        _APPENDER,
        "            os.fdatasync(self._handle)\n",
        "os.fdatasync(self._handle)",
        _EMBEDDED,
    ),
    Mutant(
        "server-reopens-without-cut-and-sync",
        _APPENDER,
        """            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
            sync_folder(path.parent)
""",
        "            sync_folder(path.parent)\n",
        _EMBEDDED,
    ),
    without(
        "server-reopens-without-cut",
        _APPENDER,
        "            os.ftruncate(self._handle, end)\n",
        "os.ftruncate(self._handle, end)",
        _EMBEDDED,
    ),
    without(
        "server-reopens-without-sync",
        _APPENDER,
        """            os.ftruncate(self._handle, end)
            os.fsync(self._handle)
""",
        "os.fsync(self._handle)",
        _EMBEDDED,
    ),
    without(
        "server-segment-name-not-synced",
        _APPENDER,
        "            sync_folder(path.parent)\n",
        "sync_folder(path.parent)",
        _EMBEDDED,
    ),
    without(
        "server-refused-batch-not-cut-durably",
        _APPENDER,
        """            os.ftruncate(self._handle, self.end)
            os.fsync(self._handle)
        except""",
        "os.fsync(self._handle)",
        _EMBEDDED,
    ),
    without(
        "server-closed-segment-not-cut-durably",
        _APPENDER,
        """        os.ftruncate(self._handle, self.end)
        os.fsync(self._handle)
        self._size = self.end
""",
        "os.fsync(self._handle)",
        _EMBEDDED,
    ),
    without(
        "server-mark-not-synced-at-the-start",
        _LOG,
        "        os.fsync(self._handle)\n        self._turn = 4\n",
        "os.fsync(self._handle)",
        _EMBEDDED,
    ),
    without(
        "server-mark-not-synced-at-the-end",
        _LOG,
        "    def sync(self) -> None:\n        os.fsync(self._handle)\n",
        "os.fsync(self._handle)",
        _EMBEDDED,
    ),
    without(
        "server-file-named-before-it-is-synced",
        _FILES,
        "        os.fsync(handle)\n",
        "os.fsync(handle)",
        _EMBEDDED,
    ),
    without(
        "server-mark-name-not-synced",
        _FILES,
        "    sync_folder(path.parent)\n",
        "sync_folder(path.parent)",
        _EMBEDDED,
    ),
    without(
        "server-snapshot-named-before-it-is-synced",
        _SNAPSHOT,
        "        os.fsync(file.fileno())\n",
        "os.fsync(file.fileno())",
        _EMBEDDED,
    ),
    without(
        "server-log-removed-before-the-snapshot-has-its-name",
        _SNAPSHOT,
        "    sync_folder(folder)\n",
        "sync_folder(folder)",
        _EMBEDDED,
    ),
)

_OF_AGENTS: Final = (
    without(
        "journal-batch-not-synced",
        _JOURNAL,
        "        os.fdatasync(self._handle)\n",
        "os.fdatasync(self._handle)",
        _AGENT,
    ),
    without(
        "journal-kept-without-sync",  # when it is opened again, or after a write without room
        _JOURNAL,
        "        os.fsync(self._handle)\n        sync_folder(self._path.parent)\n",
        "os.fsync(self._handle)",
        _AGENT,
    ),
    without(
        "journal-name-not-synced-when-reopened",
        _JOURNAL,
        "        sync_folder(self._path.parent)\n",
        "sync_folder(self._path.parent)",
        _AGENT,
    ),
    without(
        "journal-named-before-it-is-synced",
        _JOURNAL,
        "            os.fsync(handle)\n            unfinished.rename(path)\n",
        "os.fsync(handle)",
        _AGENT,
    ),
    without(
        "journal-compacted-and-its-name-not-synced",
        _JOURNAL,
        "        sync_folder(path.parent)\n",
        "sync_folder(path.parent)",
        _AGENT,
    ),
)

_OF_STORES: Final = (
    without(
        "blob-named-before-it-is-synced",
        _FOLDER,
        "                os.fsync(handle)\n",
        "os.fsync(handle)",
        _STORE,
    ),
    without(
        "blob-name-not-synced",
        _FOLDER,
        "                os.fsync(names)\n                return True\n",
        "os.fsync(names)",
        _STORE,
    ),
    without(
        "blob-folders-not-synced",
        _FOLDER,
        "                os.fsync(above)\n",
        "os.fsync(above)",
        _STORE,
    ),
    without(
        "blob-of-another-writer-not-synced",
        _FOLDER,
        """            with self._below.folder(directory) as names:
                os.fsync(names)
""",
        "os.fsync(names)",
        _STORE,
    ),
    without(
        "blob-that-is-there-not-confirmed",
        _FOLDER,
        "            self.confirm(key)\n",
        "self.confirm(key)",
        _STORE,
    ),
    without(
        "part-that-is-there-not-confirmed",
        "holdfast/storage/parts.py",
        "        blobs.confirm(part.key)\n",
        "blobs.confirm(part.key)",
        _STORE,
    ),
    without(
        "lapsing-blob-that-is-there-not-confirmed",
        "holdfast/storage/lapsing.py",
        "    blobs.confirm(key)\n",
        "blobs.confirm(key)",
        "tests/unit/storage/test_lapsing.py",
    ),
    without(
        "bundle-that-is-there-not-confirmed",
        "holdfast/storage/bundles.py",
        "        blobs.confirm(bundle.key)\n",
        "blobs.confirm(bundle.key)",
        _STORE,
    ),
    without(
        "renewed-bundle-not-confirmed",
        "holdfast/storage/bundles.py",
        "        blobs.confirm(key)\n",
        "blobs.confirm(key)",
        _STORE,
    ),
    Mutant(
        "checkpoint-of-a-script-not-durable",
        "holdfast/train/members/solo.py",
        "            disk.replace_durably(self._folder / _LAST, record.encode())\n",
        """            disk.draft(self._folder / "draft", record.encode())
            (self._folder / "draft").replace(self._folder / _LAST)
""",
        _STORE,
    ),
)

_OF_FILES: Final = (
    without(
        "file-named-before-it-is-synced",
        _DURABLE,
        "            os.fsync(handle)\n",
        "os.fsync(handle)",
        _CLUSTER,
    ),
    without(
        "file-name-not-synced",
        _DURABLE,
        "    os.fsync(folder)\n",
        "os.fsync(folder)",
        _CLUSTER,
    ),
    Mutant(
        "shim-note-not-durable",
        _SHIM,
        """        write_file(self._folder, "exit", json.dumps(self._note()).encode())
""",
        """        handle = os.open("exit", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=self._folder)
        os.write(handle, json.dumps(self._note()).encode())
""",
        _AGENT,
    ),
    Mutant(
        "agents-claim-not-durable",
        "holdfast/agent/folders.py",
        """            write_file(folder, "claim", json.dumps(NOBODY._asdict()).encode(), once=True)
""",
        """            if (self.worker(key) / "claim").exists():
                return False
            (self.worker(key) / "claim").write_text(json.dumps(NOBODY._asdict()))
""",
        _AGENT,
    ),
    without("no-folder-synced", _DISK, "        os.fsync(handle)\n", "os.fsync(handle)", _CLUSTER),
    without(
        "folder-of-a-killed-maker-not-synced",
        _DISK,
        "        sync_folder(there.parent)\n",
        "sync_folder(there.parent)",
        _CLUSTER,
    ),
    without(
        "new-folder-not-synced",
        _DISK,
        "exist_ok=True)\n        sync_folder(path.parent)\n",
        "sync_folder(path.parent)",
        _CLUSTER,
    ),
    Mutant(
        "cluster-file-not-durable",
        "holdfast/cluster/folder.py",
        "        disk.create_durably(made.folder / _FILE, text.encode())\n",
        "        (made.folder / _FILE).open('xb').write(text.encode())\n",
        _CLUSTER,
    ),
)

_MAKE: Final = ".mkdir(parents=True, exist_ok=True)"
_OF_FOLDERS: Final = (
    Mutant(
        "server-folder-not-synced",
        "holdfast/coordination/embedded/store.py",
        "make_folder(folder, 0o700)",
        f"folder{_MAKE}",
        _EMBEDDED,
    ),
    Mutant(
        "agent-folder-not-synced",
        "holdfast/agent/folders.py",
        "make_folder(folder, 0o700)",
        f"folder{_MAKE}",
        _AGENT,
    ),
    Mutant(
        "store-folder-not-synced",
        _FOLDER,
        "make_folder(self._folder, 0o700)",
        f"self._folder{_MAKE}",
        _STORE,
    ),
    Mutant(
        "cluster-folder-not-synced",
        "holdfast/supervise/wanted.py",
        "disk.make_folder(run_folder(folder), 0o700)\n    path =",
        f"run_folder(folder){_MAKE}\n    path =",
        _CLUSTER,
    ),
    Mutant(
        "authority-folder-not-synced",
        "holdfast/system/certificates.py",
        "make_folder(folder, 0o700)\n        key",
        f"folder{_MAKE}\n        key",
        _CLUSTER,
    ),
    Mutant(
        "lent-folder-not-synced",
        "holdfast/system/certificates.py",
        "make_folder(folder, 0o700)\n        replace_durably",
        f"folder{_MAKE}\n        replace_durably",
        _CLUSTER,
    ),
    Mutant(
        "credential_store-folder-not-synced",
        "holdfast/agent/credential_store.py",
        "make_folder(self._path.parent, 0o700)",
        f"self._path.parent{_MAKE}",
        _CLUSTER,
    ),
    without(
        "secret-of-a-killed-maker-not-synced",
        "holdfast/coordination/access.py",
        "        disk.sync_folder(path.parent)  # whoever made it may have been killed before\n",
        "disk.sync_folder(path.parent)",
        _CLUSTER,
    ),
    Mutant(
        "secret-not-durable",
        "holdfast/coordination/access.py",
        "        disk.create_durably(path, access.document())\n",
        "        path.open('xb').write(access.document())\n",
        _CLUSTER,
    ),
    Mutant(
        "wanted-not-durable",
        "holdfast/supervise/wanted.py",
        """    disk.replace_durably(folder / FILE, (json.dumps(fields, indent=2) + "\\n").encode())
""",
        """    (folder / FILE).write_text(json.dumps(fields, indent=2))
""",
        _CLUSTER,
    ),
    Mutant(
        "down-not-durable",
        "holdfast/supervise/wanted.py",
        """disk.replace_durably(run_folder(folder) / _DOWN, b"")""",
        """(run_folder(folder) / _DOWN).touch()""",
        _CLUSTER,
    ),
    Mutant(
        "gateways-not-durable",
        "holdfast/launch/serving.py",
        """    disk.replace_durably(_path(cluster), (json.dumps(fields, indent=2) + "\\n").encode())
""",
        """    _path(cluster).write_text(json.dumps(fields, indent=2))
""",
        _CLUSTER,
    ),
)

_OF_TOPICS: Final = (
    without(
        "topics-group-not-synced",
        _TOPICS_JOURNAL,
        "            os.fdatasync(self._handle)\n",
        "os.fdatasync(self._handle)",
        _TOPICS,
    ),
    without(
        "topics-reopens-without-sync",
        _TOPICS_JOURNAL,
        """            os.ftruncate(self._handle, tail.end)
            os.fsync(self._handle)
""",
        "os.fsync(self._handle)",
        _TOPICS,
    ),
    without(
        "topics-segment-name-not-synced",
        _TOPICS_JOURNAL,
        "            disk.sync_folder(self.folder)\n",
        "disk.sync_folder(self.folder)",
        _TOPICS,
    ),
    without(
        "topics-mark-not-synced",
        _TOPICS_JOURNAL,
        "            os.fsync(self._marks)\n",
        "os.fsync(self._marks)",
        _TOPICS,
    ),
    without(
        "topics-refused-group-not-cut-durably",
        _TOPICS_JOURNAL,
        """            os.ftruncate(self._handle, self.end)
            os.fsync(self._handle)
        except""",
        "os.fsync(self._handle)",
        _TOPICS,
    ),
    without(
        "topics-segments-not-synced-before-the-journal-goes",
        "holdfast/topics/broker/disk/store.py",
        "                    os.fsync(handle)\n",
        "os.fsync(handle)",
        _TOPICS,
    ),
    without(
        "topics-compacted-segment-not-synced",
        "holdfast/topics/broker/disk/compaction.py",
        "        os.fsync(out.fileno())\n",
        "os.fsync(out.fileno())",
        _TOPICS,
    ),
)

MUTANTS: Final = (
    *_OF_FOLDERS,
    *_SERVER,
    *_OF_AGENTS,
    *_OF_STORES,
    *_OF_FILES,
    *_OF_TOPICS,
)
