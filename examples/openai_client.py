"""Call a running server with the openai client: completions, streaming, log-probabilities, translation.

glassformer serve pocket pocket-lm
python examples/openai_client.py
"""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description="Call a Glassformer server with the openai client.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key="none")
    print("models:", ", ".join(model.id for model in client.models.list()))

    prompt = "The old man opened the door and"
    completion = client.completions.create(model="pocket-lm", prompt=prompt, max_tokens=20, temperature=0)
    print(prompt + completion.choices[0].text)

    stream = client.completions.create(model="pocket-lm", prompt=prompt, max_tokens=20, seed=1, stream=True)
    print(prompt, end="")
    for chunk in stream:
        print(chunk.choices[0].text, end="", flush=True)
    print()

    scored = client.completions.create(
        model="pocket-lm", prompt=prompt, max_tokens=3, temperature=0, logprobs=3
    )
    logprobs = scored.choices[0].logprobs
    for token, logprob in zip(logprobs.tokens, logprobs.token_logprobs, strict=True):
        print(f"  {token!r:12} {logprob:.2f}")

    translation = client.completions.create(
        model="pocket", prompt="Where is the train station?", temperature=0, extra_body={"to": "de"}
    )
    print(translation.choices[0].text)


if __name__ == "__main__":
    main()
