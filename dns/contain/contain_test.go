package contain_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/berth-dev/berth/dns/contain"
)

func TestAPanicEndsOneStep(t *testing.T) {
	contain.Guard("step", func() { panic("no") })()
	for want, handler := range map[int]http.HandlerFunc{
		http.StatusInternalServerError: func(http.ResponseWriter, *http.Request) { panic("no") },
		http.StatusNoContent:           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	} {
		recorder := httptest.NewRecorder()
		contain.Handler("handler", handler).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if recorder.Code != want {
			t.Errorf("the status is %d, want %d", recorder.Code, want)
		}
	}
}
