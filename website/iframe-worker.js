// Search in a page that was opened as a file: browsers refuse workers there, so a hidden frame does the work.
// The theme would load such a stand-in from the network; this one is part of the site.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((loaded, failed) => {
        const element = frame.contentDocument.createElement("script")
        element.src = script
        element.onload = () => loaded(inside)
        element.onerror = failed
        frame.contentDocument.body.append(element)
      })
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
