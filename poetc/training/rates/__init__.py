"""Learning-rate schedules, one file a kind: the rate of every step, in the same bits as `poetc_rate` in C computes.

A schedule is written `KIND[:NAME=VALUE,...]`, as in "cosine:warmup=100,steps=2000,final=1e-5". Steps are batches and
count from 0. The formulas are PyTorch's (torch.optim.lr_scheduler), in closed form. A warm-up is LinearLR:
base * (start + (1 - start) * t / warmup) while t < warmup. It comes before any kind; t then counts from its end, as
with SequentialLR.

Everything is computed in double precision from + - * / alone, in the same order in C, and rounded to float32 once. So
no library's cosine or power can differ. In C a product that something is added to goes through memory first, so that no
compiler fuses the two.
"""

from poetc.entry_points import own_modules
from poetc.training.rates._schedule import Plateau, Schedule, c_fields, kinds, parse

own_modules(__name__)
