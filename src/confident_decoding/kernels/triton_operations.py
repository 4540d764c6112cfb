"""The operations of the scan as Triton kernels (see `twins` for what each computes)."""

from confident_decoding.kernels.counting import count
from confident_decoding.kernels.decision import decide
from confident_decoding.kernels.keeping import keep
from confident_decoding.kernels.projection import project
from confident_decoding.kernels.settling import name_moved, relocate
from confident_decoding.kernels.states import gather
from confident_decoding.kernels.statistics import merge, statistics

__all__ = ["count", "decide", "gather", "keep", "merge", "name_moved", "project", "relocate", "statistics"]
