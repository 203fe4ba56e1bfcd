"""Slurm's accounting beside a cluster of slurm_stage.py: slurmdbd, and a database server of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import slurm_stage
from slurm_stage import SBIN, Cluster, free_ports

PROGRAMS = ("mariadbd", "slurmdbd", "sacctmgr")
PACKAGES = "mariadb-server-core slurmdbd slurm-wlm-mysql-plugin"
CONF = """
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={root}/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""
CLUSTER = (
    "AccountingStorageHost=127.0.0.1",
    "AccountingStoragePort={port}",
    "AccountingStoragePass={{root}}/munge/socket",
    "AccountingStorageTRES=gres/gpu,gres/gpumem",
    "AccountingStorageEnforce=associations",
    "PriorityType=priority/multifactor",
)

TABLES = ("/usr/share/mysql/mysql_system_tables.sql", "/usr/share/mysql/mysql_system_tables_data.sql")


def missing() -> str:
    """Why there can be no accounting here; "" if there can."""
    if why := slurm_stage.missing():
        return why
    path = os.environ["PATH"] + ":" + SBIN
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"needs {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}" if absent else ""


@dataclass
class AccountedCluster(Cluster):
    """A cluster whose accounts are in a database. Its controller starts when that answers."""

    port: int = field(default_factory=lambda: free_ports(1)[0])
    database: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.accounting = "accounting_storage/slurmdbd"
        self.more = [*self.more, *(line.format(port=self.port) for line in CLUSTER)]

    def down(self) -> None:
        super().down()
        if self.database is not None:
            self.database.wait()

    def start_controller(self, *options: str) -> None:
        if not self._pid("slurmdbd"):
            self.start_database()
            self.start_accounts()
        super().start_controller(*options)

    def start_database(self) -> None:
        """It listens on a socket in a folder of root's alone, and asks nobody for a password."""
        folder = self.root / "database"
        data, socket = folder / "data", folder / "socket"
        settings = {"user": "root", "datadir": data, "innodb-buffer-pool-size": "64M", "innodb-log-file-size": "48M"}
        line = ["mariadbd", "--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]
        if not data.exists():
            data.mkdir(parents=True)
            folder.chmod(0o700)
            tables = "\n".join(Path(path).read_text() for path in TABLES)
            made = f"create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\n{tables}"
            subprocess.run([*line, "--bootstrap"], input=made, text=True, check=True, capture_output=True)
        self._forget("mariadbd")
        more = {"socket": socket, "pid-file": self.root / "mariadbd.pid", "log-error": folder / "log"}
        options = ["--skip-networking", *(f"--{name}={value}" for name, value in more.items())]
        with (folder / "output").open("ab") as output:
            self.database = subprocess.Popen(
                [*line, *options], stdout=output, stderr=output, env=self.environ, start_new_session=True
            )
        self.until(socket.exists, "mariadbd has no socket")

    def start_accounts(self) -> None:
        conf = self.root / "etc" / "slurmdbd.conf"
        conf.write_text(CONF.format(root=self.root, port=self.port))
        conf.chmod(0o600)
        self._forget("slurmdbd")
        self.run("slurmdbd", check=True, env={"MYSQL_UNIX_PORT": str(self.root / "database" / "socket")})
        self.until(lambda: self.run("sacctmgr", "-n", "list", "cluster").returncode == 0, "slurmdbd does not answer")

    def accounts(self, *words: str) -> None:
        """A change with sacctmgr. What is so already is no error."""
        done = self.run("sacctmgr", "-i", *words)
        assert done.returncode == 0 or "Nothing" in done.stdout + done.stderr, done.stdout + done.stderr
