#!/bin/sh
# A root with the Slurm of a newer Debian, for `make test-engines SLURM_ROOT=FOLDER`: make_slurm_root.sh FOLDER [SUITE]
# Needs root, and debootstrap with keys of that Debian.
set -eu
folder=${1:?say which folder}
packages=slurmctld,slurmd,slurm-client,munge,slurm-wlm-basic-plugins,libslurm-dev,slurmdbd,slurm-wlm-mysql-plugin,gcc,libc6-dev
exec debootstrap --variant=minbase --include=$packages,python3 "${2:-trixie}" "$folder"
