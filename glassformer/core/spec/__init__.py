"""Specs: small frozen dataclasses that describe a model, nested like its modules.

Variants are separate classes or literals, not combinations of booleans, so that meaningless combinations
cannot be expressed. `build.py` builds modules from a spec; `to_dict` and `from_dict` of `schema.py` convert
it to and from JSON data.

    StackSpec(d_model=512, num_layers=6, block=BlockSpec(attention=AttentionSpec(num_heads=8),
          feed_forward=FeedForwardSpec(d_ff=2048), norm=LayerNormSpec(), wiring="post"))
"""

# ruff: noqa: F403

from glassformer.core.spec.architectures import *
from glassformer.core.spec.convolution import *
from glassformer.core.spec.diffusion import *
from glassformer.core.spec.image_architectures import *
from glassformer.core.spec.image_text import *
from glassformer.core.spec.images import *
from glassformer.core.spec.layers import *
from glassformer.core.spec.pipelines import *
from glassformer.core.spec.series import *
from glassformer.core.spec.text import *
