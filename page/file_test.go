package page_test

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page"
	"github.com/berth-dev/berth/timeline"
)

// hostile is a text that a page must not take for anything else.
const hostile = `</style></title><script>alert(1)</script><img src=x onerror=alert(1)>"'`

func explanation(name string) *explain.Explanation {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &explain.Explanation{
		Object: timeline.Ref{Kind: explain.KindPod, Namespace: "shop", Name: name, UID: "a"}, State: explain.Failed, Reason: "ImagePull",
		Verdict: "waiting: " + hostile, Since: now, HeldBy: hostile, Next: "berth explain " + hostile, Remedy: hostile,
		Evidence: []explain.Evidence{{Object: "Pod/x", Field: "event", Text: hostile}}, Unseen: []string{hostile},
		Stages: []explain.Stage{{Stage: timeline.Stage{Name: timeline.StageImage, Subject: hostile, Attempt: 1, Start: now, Error: hostile}, Object: "Pod/" + name}},
	}
}

func TestAFileStandsAlone(t *testing.T) {
	now := time.Date(2026, 1, 2, 4, 4, 5, 0, time.UTC)
	for name, file := range map[string]page.File{
		"one":  {Explanations: []*explain.Explanation{explanation("web")}, Now: now, Made: "Made now."},
		"list": {Explanations: []*explain.Explanation{explanation("web"), explanation(hostile)}, List: true, Unseen: []string{hostile}, Now: now},
		"none": {List: true, Now: now},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, file.Write(&b))
			text := b.String()
			require.NotContains(t, text, "<script")
			require.NotContains(t, text, "<img")
			require.NotRegexp(t, `(?:src|href)="(?:https?:)?//`, text, "nothing is loaded")
			sheet := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(text)
			require.NotNil(t, sheet)
			hash := sha256.Sum256([]byte(sheet[1]))
			policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
			require.True(t, strings.Contains(html.UnescapeString(text), policy), "the policy does not allow this style sheet, or allows more")
			if !file.List {
				require.Contains(t, text, "<title>Pod shop/web</title>")
				require.Contains(t, text, "1 h 0 min")
			}
			if name == "none" {
				require.Contains(t, text, "Nothing is stuck.")
			}
		})
	}
}
