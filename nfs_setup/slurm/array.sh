#!/bin/bash
# An array over cells × seeds, each task a run on the virtual cluster, in a folder of its own:
# `sbatch nfs_setup/slurm/array.sh` in the folder of the repository, which all nodes share. Edit
# `cells`, `seeds`, and --array, which counts the tasks from 0: cells times seeds, less one.
# (`python -m experiments.submit` counts by itself, and follows what it has submitted.)

#SBATCH --job-name=cells
#SBATCH --array=0-9                # 2 cells × 5 seeds; 0-9%4 has four run at a time
#SBATCH --ntasks=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%A_%a.log

cd "$SLURM_SUBMIT_DIR" || exit

cells=(experiments/cb_dybw/cells/learning/mnist-lrm-n6-iid-cb_{dybw,full}.flags)
seeds=({0..4})

task=$SLURM_ARRAY_TASK_ID
cell=${cells[task / ${#seeds[@]}]:?--array has more tasks than there are cells × seeds}
seed=${seeds[task % ${#seeds[@]}]}
run_dir="runs/$SLURM_ARRAY_JOB_ID/$(basename "$cell" .flags)-$seed"
flags=(--flagfile="$cell" --seed="$seed" --checkpoint_every=50)

# A task that Slurm starts again, because a node has failed say, goes on from its last checkpoint.
if [ -e "$run_dir" ]; then flags+=(--resume); fi

# exec: Slurm's SIGTERM should find the run, not a shell, whose death would cut it off.
exec .venv/bin/python -m experiments.train "${flags[@]}" --run_dir="$run_dir"
