package main

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
)

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Berth demo: {{.Count}} {{if eq .Count 1}}visit{{else}}visits{{end}}</title>
<style>
:root { color-scheme: light dark }
body { font: 1.1rem/1.6 system-ui, sans-serif; max-width: 34rem; margin: 12vh auto; padding: 0 1.5rem }
.count { font-size: 5rem; font-weight: 700; line-height: 1; margin: 0 }
code { font-size: .95em }
</style>
</head>
<body>
<main>
<h1><span class="count">{{.Count}}</span><br>{{if eq .Count 1}}visit{{else}}visits{{end}} so far</h1>
<p>The number is in the file <code>{{.File}}</code>, on a volume. Delete the Pod{{with .Host}}
<code>{{.}}</code>{{end}} and load this page again: another Pod answers, and goes on counting.</p>
</main>
</body>
</html>
`))

// handler serves the page, the number alone and the health check; host is shown as the name of the Pod.
func handler(c *counter, host string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		// GET patterns also match HEAD, which asks about the page and is no visit.
		count := c.Add
		if r.Method == http.MethodHead {
			count = c.Value
		}
		n, err := count()
		if err != nil {
			fail(w, err)
			return
		}
		var body bytes.Buffer
		err = page.Execute(&body, struct {
			Count      uint64
			File, Host string
		}{n, c.path(), host})
		if err != nil {
			fail(w, fmt.Errorf("render the page: %w", err))
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = body.WriteTo(w) // An error means that the client has disconnected.
	})
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) {
		n, err := c.Value()
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		fmt.Fprintln(w, n)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Check(); err != nil {
			fail(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func fail(w http.ResponseWriter, err error) {
	http.Error(w, "demo: "+err.Error(), http.StatusInternalServerError)
}
