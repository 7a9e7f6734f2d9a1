// Whether the server responds. While it does not, retries, and repeats failed requests afterwards.

const RETRY_MS = 3000;

class Connection {
  /** How many times the connection was restored; read it to run again when it is. */
  restored = $state(0);
  #lost = false;

  fail(): void {
    if (this.#lost) return;
    this.#lost = true;
    this.#retry();
  }

  succeed(): void {
    if (!this.#lost) return;
    this.#lost = false;
    this.restored++;
  }

  #retry(): void {
    setTimeout(() => {
      if (this.#lost)
        void fetch('health').then(
          () => this.succeed(),
          () => this.#retry(),
        );
    }, RETRY_MS);
  }
}

export const connection = new Connection();
