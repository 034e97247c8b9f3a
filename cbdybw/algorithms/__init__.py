"""How workers synchronise: one module a family, each the paper's pseudo-code line by line."""

from cbdybw.algorithms.ad_psgd import ad_psgd
from cbdybw.algorithms.adacomm import adacomm, fixed_adacomm
from cbdybw.algorithms.adsp import adsp, adsp_plus, adsp_plus_plus
from cbdybw.algorithms.allreduce import allreduce
from cbdybw.algorithms.backup import dbw, ps_backup
from cbdybw.algorithms.cb_adsp import cb_adsp
from cbdybw.algorithms.consensus import cb_full
from cbdybw.algorithms.dybw import cb_dybw
from cbdybw.algorithms.parameter_server import asp, bsp, ssp
from cbdybw.algorithms.pathsearch import dsgd_aau
from cbdybw.algorithms.plan import RECOVERIES, Algorithm
from cbdybw.algorithms.scar import scar
from cbdybw.algorithms.static import cb_static

ALGORITHMS = {
    "cb_full": Algorithm(
        cb_full,
        "arXiv 2102.06280, Algorithm 1 with S_j(k) = N_j",
        "every worker waits for all of its neighbours",
        recoveries=RECOVERIES,
    ),
    "cb_dybw": Algorithm(
        cb_dybw,
        "arXiv 2102.06280, Algorithms 1 and 2",
        "a threshold decides in each iteration which slow neighbours are left out",
        recoveries=RECOVERIES,
    ),
    "cb_static": Algorithm(
        cb_static,
        "arXiv 2102.06280, Algorithm 1 with S_j(k) = the |N_j| - b fastest neighbours",
        "every worker waits for all but b of its neighbours",
        policies=("carry", "drop", "late"),
    ),
    "dsgd_aau": Algorithm(
        dsgd_aau,
        "arXiv 2306.06559, DSGD-AAU with Pathsearch",
        "as cb_dybw, with edges that are found on the way instead of a fixed path",
        policies=("carry",),
    ),
    "allreduce": Algorithm(
        allreduce,
        "synchronous SGD",
        "every worker has the mean of all gradients",
        family="allreduce",
        omits="workers",
    ),
    "ad_psgd": Algorithm(
        ad_psgd,
        "arXiv 1710.06952, Algorithm 1",
        "every worker averages with one random neighbour at a time and waits for nobody else",
        family="gossip",
        policies=("carry",),
        omits="",
    ),
    "cb_adsp": Algorithm(
        cb_adsp,
        "arXiv 2102.06280 at the pace of arXiv 1911.06949 (ours)",
        "nobody waits; all make equally many exchanges, with as many steps between as they can",
        policies=("carry",),
    ),
    "bsp": Algorithm(
        bsp,
        "synchronous SGD at a parameter server",
        "every iteration waits for all workers",
        family="server",
        omits="workers",
    ),
    "asp": Algorithm(
        asp,
        "asynchronous SGD at a parameter server",
        "nobody waits for others",
        family="server",
        omits="",
    ),
    "ssp": Algorithm(
        ssp,
        "stale synchronous SGD at a parameter server",
        "nobody is more than s steps ahead of the slowest worker",
        family="server",
        omits="",
    ),
    "adsp": Algorithm(
        adsp,
        "arXiv 1911.06949",
        "nobody waits; a search sets how often each worker commits what its own steps came to",
        family="server",
        omits="",
        searches=True,
    ),
    "adsp_plus": Algorithm(
        adsp_plus,
        "arXiv 1911.06949, ADSP+",
        "as adsp, with the commit rate found before training",
        family="server",
        omits="",
        searches=True,
    ),
    "adsp_plus_plus": Algorithm(
        adsp_plus_plus,
        "arXiv 1911.06949, ADSP++",
        "as adsp_plus, with momentum and learning rate found together with it",
        family="server",
        omits="",
        searches=True,
    ),
    "adacomm": Algorithm(
        adacomm,
        "arXiv 1810.08313, as a baseline of arXiv 1911.06949",
        "as fixed_adacomm, with τ found before training and falling with the loss",
        family="server",
        omits="",
        searches=True,
    ),
    "fixed_adacomm": Algorithm(
        fixed_adacomm,
        "a baseline of arXiv 1911.06949",
        "every worker takes τ local steps, then all average",
        family="server",
        omits="",
    ),
    "ps_backup": Algorithm(
        ps_backup,
        "arXiv 1604.00981",
        "every iteration waits for all but b workers",
        family="server",
        policies=("carry", "drop"),
        omits="workers",
    ),
    "dbw": Algorithm(
        dbw,
        "arXiv 2004.14696",
        "as ps_backup, with b chosen in every iteration",
        family="server",
        policies=("carry", "drop"),
        omits="workers",
    ),
    "scar": Algorithm(
        scar,
        "arXiv 1810.07354",
        "every iteration waits for all; what lost servers held comes from running checkpoints",
        family="server",
        omits="",
        recoveries=("none", "partial", "full"),
        root_holds=True,
    ),
}
