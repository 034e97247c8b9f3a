#!/bin/bash
# A run that is longer than the time limit: warned shortly before, it stops after its next
# checkpoint and has itself started again, until it is done. `sbatch nfs_setup/slurm/requeue.sh` in
# the folder of the repository, which all nodes share; `sbatch --array=0-4 …` makes it an array.
# `experiments.submit` makes its scripts of this file.

#SBATCH --job-name=long
#SBATCH --ntasks=6                 # workers, and servers where the algorithm has some
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR2@90         # warns this script so many seconds before the end: more than
                                   # pass between two checkpoints, else none is made in time
#SBATCH --requeue                  # it may be started again, by itself, after a node's failure …
#SBATCH --open-mode=append         # … and its log goes on then
#SBATCH --output=%x-%A_%a.log

cd "$SLURM_SUBMIT_DIR" || exit
export OMP_NUM_THREADS=1           # threads of a rank: as many as it has processors

# --- edit from here
python=.venv/bin/python
launch=(.venv/bin/mpirun --with-ft ulfm --bind-to none -n "$SLURM_NTASKS")
# On the virtual cluster: --ntasks=1 above, and launch=(); leave out --cluster=mpi.
flags=(--cluster=mpi --workers="$SLURM_NTASKS" --seed="${SLURM_ARRAY_TASK_ID:-0}")
flags+=(--algorithm=cb_dybw --iterations=100000 --checkpoint_every=50)
run_dir="runs/$SLURM_JOB_NAME-${SLURM_ARRAY_TASK_ID:-0}"
# --- to here

if [ -e "$run_dir" ]; then flags+=(--resume); fi

# Slurm's SIGTERM (scancel, a preempted job, the end of the time) finds the run by itself, and this
# script has to outlive it: what is left of a job whose script has ended is killed at once.
trap 'warned=yes' USR2
trap 'ended=yes; kill -TERM "$run" 2> /dev/null' TERM

# A process that ignores SIGUSR2 goes on doing so until it listens: a warning that comes while
# TensorFlow loads ends nothing. Under mpirun that has to be said on each node.
deaf=(bash -c 'trap "" USR2; exec "$@"' -)
"${deaf[@]}" "${launch[@]}" "${deaf[@]}" \
    "$python" -m experiments.train "${flags[@]}" --run_dir="$run_dir" &
run=$!

while kill -0 "$run" 2> /dev/null; do
    # Again and again, for the first one may have come too early. mpirun passes it on to all ranks.
    if [ "$warned" ]; then kill -USR2 "$run" 2> /dev/null; fi
    sleep 1
done
wait "$run"
code=$?

# A task of an array has a number of its own, whatever SLURM_JOB_ID says.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
again="it has lost no more than what came after its last checkpoint: submit it again to go on"

# Who has to give way to another job ends within the grace time: Slurm first tells only what srun
# has started, as mpirun's daemons, and would take that for an end of the job's own.
preempted() { scontrol show job "$job" | grep -q ' PreemptTime=[0-9]'; }

if [ "$ended" ] && [ "$warned" ]; then
    echo "ended before its next checkpoint; $again, with checkpoints more often, an earlier" \
        "warning (--signal) or more --time" >&2
elif [ "$code" = 75 ] || preempted; then
    scontrol requeue "$job" || echo "this cluster lets no job requeue itself; $again" >&2
fi
exit "$code"
