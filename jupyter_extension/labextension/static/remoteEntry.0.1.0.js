// Notices of a dlspawner job as JupyterLab notifications: a prebuilt extension, written by hand.
//
// JupyterLab loads this file, calls `init` with the modules that it shares, and `get("./extension")` for the plugin
// (https://webpack.js.org/concepts/module-federation/; JupyterLab's "prebuilt extensions"). Texts become text, never HTML.
(() => {
  "use strict";

  const NAME = "dlspawner-jupyter";
  const TYPES = new Set(["info", "warning", "error"]);
  let shared = {};

  async function load(name) {
    const [version] = Object.values(shared[name] ?? {});
    if (!version) throw new Error(`JupyterLab shares no ${name}`);
    return (await version.get())();
  }

  const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  // A window that nobody sees asks nothing: its requests would look like use of the job to the Hub's proxy.
  const visible = () =>
    new Promise((resolve) => {
      const look = () => {
        if (document.visibilityState === "hidden") return;
        document.removeEventListener("visibilitychange", look);
        resolve();
      };
      document.addEventListener("visibilitychange", look);
      look();
    });

  // The reader's own clock, with the day where it is not today.
  function moment(until) {
    const at = new Date(until);
    const day = at.toDateString() === new Date().toDateString() ? {} : { day: "numeric", month: "long" };
    return `at ${at.toLocaleString([], { hour: "2-digit", minute: "2-digit", ...day })}`;
  }

  function sentence({ text, until }) {
    if (!until) return text.replaceAll("{when}", "").replace(/ +/g, " ").trim();
    return text.includes("{when}") ? text.replaceAll("{when}", moment(until)) : `${text} (${moment(until)})`;
  }

  function activate(app, Notification, ServerConnection) {
    const settings = app.serviceManager.serverSettings;
    const base = `${settings.baseUrl.replace(/\/$/, "")}/dlspawner/notices`;
    const shown = new Map(); // notice id → { toast, message }

    async function ask(path, init = {}) {
      const answer = await ServerConnection.makeRequest(`${base}${path}`, init, settings);
      const content = await answer.json().catch(() => ({}));
      return { ok: answer.ok, status: answer.status, content };
    }

    async function keep(id) {
      const { ok, content } = await ask(`/${id}/keep`, { method: "POST" }).catch(() => ({ content: {} }));
      const said = ok ? content.said || "The job goes on." : content.message || "That did not work. Try again soon.";
      Notification.emit(said, ok ? "success" : "error", { autoClose: ok ? 8000 : false });
    }

    function actions(notice) {
      const button = { label: "Keep it running", displayType: "accent", callback: () => void keep(notice.id) };
      return notice.keep ? [button] : [];
    }

    function show(notices) {
      const open = new Map(notices.filter((notice) => !notice.seen).map((notice) => [notice.id, notice]));
      for (const [id, { toast }] of [...shown]) {
        if (open.has(id)) continue;
        shown.delete(id); // first, or its end would count as read
        Notification.dismiss(toast);
      }
      for (const [id, notice] of open) {
        const message = sentence(notice);
        const known = shown.get(id);
        if (!known) {
          const type = TYPES.has(notice.level) ? notice.level : "warning";
          const toast = Notification.emit(message, type, { autoClose: false, actions: actions(notice) });
          shown.set(id, { toast, message });
        } else if (known.message !== message) {
          known.message = message;
          Notification.update({ id: known.toast, message, autoClose: false, actions: actions(notice) });
        }
      }
    }

    Notification.manager.changed.connect((_, change) => {
      if (change.type !== "removed") return;
      for (const [id, { toast }] of [...shown]) {
        if (toast !== change.notification.id) continue;
        shown.delete(id);
        ask(`/${id}/seen`, { method: "POST" }).catch(() => {}); // then it comes back in the next window, which is right
      }
    });

    async function follow() {
      let version = "";
      let failures = 0;
      for (;;) {
        await visible();
        const started = Date.now();
        const { ok, status, content } = await ask(`?after=${encodeURIComponent(version)}`).catch(() => ({ status: 0, content: {} }));
        if (status === 404) return; // this server is no job of dlspawner
        if (ok && Array.isArray(content.notices)) {
          failures = 0;
          version = content.version;
          show(content.notices);
          if (Date.now() - started < 1000) await pause(1000);
        } else {
          failures += 1;
          await pause(Math.min(60000, 2000 * 2 ** Math.min(failures, 5)) * (0.5 + Math.random() / 2));
        }
      }
    }

    app.restored.then(follow).catch((problem) => console.error(`${NAME}:`, problem));
  }

  const container = {
    init(scope) {
      shared = scope;
    },
    async get(module) {
      if (module !== "./extension") throw new Error(`${NAME} has no ${module}`);
      const [{ Notification }, { ServerConnection }] = await Promise.all([
        load("@jupyterlab/apputils"),
        load("@jupyterlab/services"),
      ]);
      const plugin = {
        id: `${NAME}:notices`,
        description: "Shows what will happen to this job, before it does.",
        autoStart: true,
        activate: (app) => activate(app, Notification, ServerConnection),
      };
      return () => ({ __esModule: true, default: plugin });
    },
  };

  (window._JUPYTERLAB ??= {})[NAME] = container;
})();
