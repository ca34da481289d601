"""One thread in tests: two that spin on a busy machine cost a hundred times more."""

import torch

torch.set_num_threads(1)
