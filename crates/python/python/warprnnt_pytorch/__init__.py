"""The loss of warp-transducer under its original module name; see :mod:`panda_rnnt.warp_transducer`."""

from panda_rnnt.warp_transducer import RNNTLoss, rnnt_loss

__all__ = ["RNNTLoss", "rnnt_loss"]
