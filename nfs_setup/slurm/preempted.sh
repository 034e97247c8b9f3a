#!/bin/bash
# A run in a partition whose jobs have to give way to others: Slurm sends SIGTERM, waits for the
# partition's grace time, kills what is left, and starts the job again when there is room. The run
# ends at SIGTERM at once and goes on from its last checkpoint: what it loses is what it did since,
# so checkpoints should be frequent. `sbatch nfs_setup/slurm/preempted.sh` in the folder of the
# repository, which all nodes share. `scontrol show config | grep Preempt` tells the cluster's way:
# with PreemptMode=CANCEL nothing is started again, and the same sbatch goes on by hand.

#SBATCH --job-name=preempted
#SBATCH --partition=preemptible    # as your cluster calls it
#SBATCH --ntasks=6                 # workers, and servers where the algorithm has some
#SBATCH --time=1-00:00:00
#SBATCH --requeue                  # without it Slurm may cancel the job instead
#SBATCH --open-mode=append         # its log goes on then
#SBATCH --output=%x-%j.log

cd "$SLURM_SUBMIT_DIR" || exit
export OMP_NUM_THREADS=1           # threads of a rank: as many as it has processors

flags=(--algorithm=cb_dybw --workers="$SLURM_NTASKS" --iterations=100000 --checkpoint_every=20)
run_dir="runs/$SLURM_JOB_NAME"

if [ -e "$run_dir" ]; then flags+=(--resume); fi

# This script must outlive the SIGTERM, else Slurm kills the ranks before they have written how the
# run ended.
trap 'kill -TERM "$run" 2> /dev/null' TERM
.venv/bin/mpirun --with-ft ulfm --bind-to none -n "$SLURM_NTASKS" \
    .venv/bin/python -m experiments.train --cluster=mpi "${flags[@]}" --run_dir="$run_dir" &
run=$!
while kill -0 "$run" 2> /dev/null; do sleep 1; done
wait "$run"
code=$?

# First Slurm tells only what srun has started, as mpirun's daemons. So the run has ended within the
# grace time, and Slurm would take that for an end of the job's own, and start nothing again.
if scontrol show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
