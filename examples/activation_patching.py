"""Find the heads that carry a piece of information by activation patching.

French says "mon père" but "ma mère". We translate two sentences that differ in that noun, copy the output of
one cross-attention head from the first run into the second, and measure how far the first word moves from
"Ma" back to "Mon". Then the residual stream of one word is patched, and the sentence is translated again.

    python examples/activation_patching.py
"""

import torch
from torch import Tensor

import glassformer
from glassformer.interpret.patching import compare_answers
from glassformer.interpret.schema import PatchActivation, TraceInput
from glassformer.interpret.trace import trace_model

CLEAN = TraceInput(text="My father is very tired.", to="fr")
CORRUPTED = TraceInput(text="My mother is very tired.", to="fr")


def main() -> Tensor:
    pipeline = glassformer.load("pocket")
    patching = compare_answers(trace_model(pipeline, CLEAN), trace_model(pipeline, CORRUPTED))
    setup = patching.setup()
    father, mother = (answer.text.strip() for answer in setup.answers)
    high, low = setup.differences
    print(f"logit({father}) - logit({mother}): {high:.2f} for the father, {low:.2f} for the mother")

    sites = [site for site in setup.sites if site.endswith("cross_attn.heads")]
    recovery = torch.tensor([patching.patch(site).recovered for site in sites])
    print("share of the difference that each head restores (rows: layers, columns: heads)")
    for layer, row in enumerate(recovery.tolist()):
        print(f"  layer {layer}  " + "  ".join(f"{value:6.1%}" for value in row))
    layer, head = divmod(int(recovery.argmax()), recovery.shape[1])
    print(f"largest effect: layer {layer}, head {head}")

    site = "encoder.blocks.2.resid_out"
    shares = patching.patch(site).recovered
    word = max(range(len(shares)), key=lambda n: shares[n] or 0)
    patch = PatchActivation(name=site, position=word, source=CLEAN)
    token = patching.corrupted.sequence("source").tokens[word].piece.strip()
    translation = trace_model(pipeline, CORRUPTED, [patch]).outcome.text
    print(f"with the father's residual stream at {token!r}, layer 2: {translation}")
    return recovery


if __name__ == "__main__":
    main()
