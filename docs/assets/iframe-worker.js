// Lets the search work where pages are opened as files: browsers refuse workers of file:// pages,
// so the worker's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.loaded = new Promise((done) => {
        const start = () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.src = url;
          script.onload = done;
          inner.document.body.append(script);
        };
        const attach = () => {
          document.body.append(this.frame);
          start();
        };
        document.body ? attach() : addEventListener("DOMContentLoaded", attach);
      });
    }
    postMessage(data) {
      this.loaded.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })),
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}
