#!/bin/bash
# One run on MPI: `sbatch nfs_setup/slurm/mpi.sh` in the folder of the repository, which all nodes
# share, .venv included. Edit the lines of #SBATCH, and `flags`.

#SBATCH --job-name=cb-dybw
#SBATCH --ntasks=6                 # workers, and servers where the algorithm has some
#SBATCH --time=01:00:00            # always give one: ranks may wait for a dead one for ever
#SBATCH --output=%x-%j.log

cd "$SLURM_SUBMIT_DIR" || exit
export OMP_NUM_THREADS=1           # threads of a rank: as many as it has processors

flags=(--algorithm=cb_dybw --workers="$SLURM_NTASKS" --workload=lrm --checkpoint_every=50)
run_dir="runs/$SLURM_JOB_ID"

# A job that Slurm starts again, because a node has failed say, goes on from its last checkpoint.
if [ -e "$run_dir" ]; then flags+=(--resume); fi

# mpirun starts its ranks on all nodes of the job by itself. With srun in its place the run ends when
# a rank dies, whatever --recovery says. `--mca btl_tcp_if_include NETWORK` before -n keeps ranks to
# one network, such as 10.1.0.0/16 or eth0. exec: Slurm's SIGTERM should find mpirun, not a shell,
# whose death would cut the ranks off before they have written how the run ended.
exec .venv/bin/mpirun --with-ft ulfm --bind-to none -n "$SLURM_NTASKS" \
    .venv/bin/python -m experiments.train --cluster=mpi "${flags[@]}" --run_dir="$run_dir"
