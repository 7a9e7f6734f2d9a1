// Whether the server responds. While it does not, retries, and repeats failed requests afterwards.

const EVERY = 3000; // milliseconds

class Server {
  /** How often it came back: read it to run again when it does. */
  returns = $state(0);
  #away = false;

  lost(): void {
    if (this.#away) return;
    this.#away = true;
    this.#call();
  }

  heard(): void {
    if (!this.#away) return;
    this.#away = false;
    this.returns++;
  }

  #call(): void {
    setTimeout(() => {
      if (this.#away)
        void fetch('health').then(
          () => this.heard(),
          () => this.#call(),
        );
    }, EVERY);
  }
}

export const connection = new Server();
